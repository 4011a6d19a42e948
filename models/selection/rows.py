"""Hold features as unit rows in float32, and pass over them block by block.

Blocks bound what a pass adds to the rows. Sums over documents are accumulated in float64 between blocks.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from fineweb_mask.models.runtime.stopping import raise_if_stopped

VARIES = 1e-6  # least standard deviation of an entry of unit rows: a smaller one is float32 rounding
AT_THE_MEAN = 1e-5  # share of the length sqrt(d): a shorter standardised row is float32 rounding
BLOCK_BYTES = {"cpu": 16 << 20, "cuda": 1 << 30}  # one block in float32
BLOCK_ROWS = {"cpu": 8192, "cuda": 1 << 62}  # most rows of one: what is made of narrow ones stays in the cache
TILE = (
    192  # columns of a symmetric product that are made at once: one triangle of tiles takes little over half the time
)
GATHERED_BYTES = {"cpu": 3 << 18, "cuda": 1 << 30}  # rows that are gathered at once: 256 of 768 values


class Rows:
    """Rows of a matrix (n, d): unit rows, or those that `standardised` makes of them.

    `matrix` holds them in float32. Made of float16 on a GPU, they are multiplied with each other in float16, which is
    ten times as fast.
    """

    def __init__(self, stored: Tensor, scale: Tensor | None = None) -> None:
        """Take rows (n, d), float16 or float32, times one factor each, `scale` (n,) float32; None: as they are."""
        self.n, self.d = stored.shape
        self.device = stored.device
        kind = self.device.type if self.device.type in BLOCK_BYTES else "cpu"
        self.block_rows = max(1, min(BLOCK_ROWS[kind], BLOCK_BYTES[kind] // (4 * self.d)))
        self._gathered_rows = max(1, min(self.block_rows, GATHERED_BYTES[kind] // (4 * self.d)))
        is_half = self.device.type == "cuda" and stored.dtype == torch.float16
        self._halves = (stored, scale) if is_half else None
        self.matrix = stored.float() if scale is None else stored.to(torch.float32, copy=True).mul_(scale[:, None])

    def slices(self, block_rows: int | None = None) -> Iterator[slice]:
        """Cut the rows into consecutive blocks."""
        step = block_rows or self.block_rows
        for start in range(0, self.n, step):
            raise_if_stopped()
            yield slice(start, min(start + step, self.n))

    def products(self, left: slice | Tensor, right: slice | Tensor) -> Tensor:
        """Multiply rows with others, consecutive ones or those of an index each: (b, c) float32.

        Products of float16 are added up in float32 all the same.
        """
        if self._halves is None:
            return self.matrix[left] @ self.matrix[right].T
        stored, scale = self._halves
        products = torch.mm(stored[left], stored[right].T, out_dtype=torch.float32)
        return products if scale is None else products.mul_(scale[left, None]).mul_(scale[right])

    def only(self, index: Tensor) -> "Rows":
        """Return some rows (b,) as separate rows."""
        return Rows(self.matrix[index])

    def standard(self) -> Tensor:
        """Compute the mean of every dimension, and one over its standard deviation: (2, d) float32.

        The latter is 0 where the dimension does not vary.
        """
        total = torch.zeros(self.d, dtype=torch.float64, device=self.device)
        for rows in self.slices():
            total += self.matrix[rows].sum(0, dtype=torch.float64)
        centre = (total / self.n).float()
        squares = torch.zeros_like(total)
        for rows in self.slices():
            squares += (self.matrix[rows] - centre).square_().sum(0, dtype=torch.float64)
        deviation = (squares / self.n).sqrt()
        inverse = torch.where(deviation > VARIES, 1 / deviation.clamp(min=1e-30), 0.0)
        return torch.stack([centre, inverse.float()])

    def standardised(self, standard: Tensor) -> "Rows":
        """Centre and scale every dimension by a `standard` (2, d), then every row to length sqrt(d).

        A dimension that does not vary becomes zero, and so does a row that is at the mean.
        """
        centre, inverse = standard
        standardised = (self.matrix - centre).mul_(inverse)
        norms, length = torch.linalg.vector_norm(standardised, dim=1), self.d**0.5
        standardised.mul_(torch.where(norms > AT_THE_MEAN * length, length / norms, 0.0)[:, None])
        return Rows(standardised)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Sum the rows under weights or over masks, (n,) or (G, n): (d,) or (G, d) float64."""
        total = torch.zeros((*weights.shape[:-1], self.d), dtype=torch.float64, device=self.device)
        if weights.dim() == 1 and 2 * int(torch.count_nonzero(weights)) < self.n:  # reads the rows that count only
            for part in torch.split(weights.nonzero()[:, 0], self._gathered_rows):
                total += weights[part].float() @ self.matrix[part]
            return total
        for rows in self.slices():
            total += weights[..., rows].float() @ self.matrix[rows]
        return total

    def second_moment(self, weights: Tensor) -> Tensor:
        """Sum w_i z_i z_i^T over the rows, for weights (n,): (d, d) float64."""
        total = torch.zeros((self.d, self.d), dtype=torch.float64, device=self.device)
        for part in torch.split(weights.nonzero()[:, 0], self.block_rows):
            block = self.matrix[part]
            weighed = block * weights[part, None].float()
            for tile in self._tiles():
                total[tile.start :, tile] += block[:, tile.start :].T @ weighed[:, tile]
        for tile in self._tiles():
            total[tile, tile.stop :] = total[tile.stop :, tile].T
        return total

    def square_norms(self) -> Tensor:
        """Compute the squared length of every row: (n,) float32."""
        return torch.cat([self.matrix[rows].square().sum(1) for rows in self.slices()])

    def quadratic(self, matrix: Tensor) -> Tensor:
        """Compute z_i^T A z_i of every row, for a matrix A (d, d): (n,) float32."""
        matrix = matrix.float()
        both, columns = matrix + matrix.T, []
        for tile in self._tiles():
            column = both[tile.start :, tile].contiguous()
            column[: column.shape[1]] = matrix[tile, tile]
            columns.append((tile, column))
        found = torch.zeros(self.n, device=self.device)
        for rows in self.slices():
            block = self.matrix[rows]
            for tile, column in columns:
                found[rows] += (block[:, tile.start :] @ column).mul_(block[:, tile]).sum(1)
        return found

    def _tiles(self) -> list[slice]:
        """Cut the dimensions into tiles."""
        return [slice(start, min(start + TILE, self.d)) for start in range(0, self.d, TILE)]
