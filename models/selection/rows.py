"""Read features as unit rows in float32, block by block.

Features may be float16 and fill most of the memory (1,000,000 x 768 is 1.5 GB). They are copied to float32 once if
that copy is small (`COPY_BYTES`), and otherwise converted block by block on every pass, so that memory is bounded by
one block. Products with vectors read blocks so small that the converted rows stay in the processor's cache: a pass
then takes about as long as one over float32 rows. Sums over documents are accumulated in float64 between blocks.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from fineweb_mask.models.runtime.stopping import raise_if_stopped

COPY_BYTES = {"cpu": 256 << 20, "cuda": 8 << 30}  # the largest float32 copy of all rows that is stored
PCA_ROWS = 8192  # rows from which the principal directions are computed
AT_THE_MEAN = 1e-5  # share of the length sqrt(d): a shorter standardised row is float32 rounding
BLOCK_BYTES = {"cpu": 16 << 20, "cuda": 1 << 30}  # one block in float32
BLOCK_ROWS = {"cpu": 8192, "cuda": 1 << 62}  # most rows of one: what is made of narrow ones stays in the cache
TILE = (
    192  # columns of a symmetric product that are made at once: one triangle of tiles takes little over half the time
)
NARROW_BYTES = {"cpu": 3 << 18, "cuda": 1 << 30}  # one that is multiplied with a vector: 256 rows of 768 values


class Standard(NamedTuple):
    """What rows are standardised by, (d,) float32 each: their mean, and one over their standard deviation."""

    centre: Tensor
    inverse_deviation: Tensor  # 0 where a dimension does not vary

    @classmethod
    def of(cls, centre: Tensor, variance: Tensor) -> "Standard":
        """Make it from means and variances, (d,) float64."""
        deviation = variance.sqrt()
        varies = deviation > 1e-6  # float32 rounding of a unit row's entry
        return cls(centre.float(), torch.where(varies, 1 / deviation.clamp(min=1e-30), 0.0).float())


class Factor(NamedTuple):
    """Some rows as they are multiplied with others, see `Rows.factor`."""

    rows: Tensor  # (b, d) float32, or float16 on a GPU
    scale: Tensor | None  # (b,) float32, by which the rows are still to be multiplied; only with float16

    def products(self, other: "Factor") -> Tensor:
        """Multiply every row with every row of another factor of the same `Rows`: (b, c) float32.

        A GPU multiplies float16 ten times as fast as float32, and adds up in float32 all the same.
        """
        if self.rows.dtype == torch.float32:
            return self.rows @ other.rows.T
        products = torch.mm(self.rows, other.rows.T, out_dtype=torch.float32)
        if self.scale is not None and other.scale is not None:
            products.mul_(self.scale[:, None]).mul_(other.scale)
        return products


class Rows:
    """Rows of a matrix (n, d) float16 or float32, scaled to unit norm, and for `standardised` centred and scaled.

    `scale` is one over the norm of each row, (n,) float32; None if the norms are 1. `centre` is subtracted from each
    scaled row, which is then multiplied with `inverse_deviation`, both (d,) float32, and with its own `final_scale`,
    (n,) float32.
    """

    def __init__(
        self,
        stored: Tensor,
        scale: Tensor | None = None,
        centre: Tensor | None = None,
        inverse_deviation: Tensor | None = None,
        final_scale: Tensor | None = None,
    ) -> None:
        self.n, self.d = stored.shape
        self.device = stored.device
        self._transform = (scale, centre, inverse_deviation, final_scale)
        self._stored = stored
        kind = self.device.type if self.device.type in COPY_BYTES else "cpu"
        self.block_rows = max(1, min(BLOCK_ROWS[kind], BLOCK_BYTES[kind] // (4 * self.d)))
        self._narrow_rows = max(1, min(self.block_rows, NARROW_BYTES[kind] // (4 * self.d)))
        self._halves: tuple[Tensor, Tensor | None] | None = None
        if self.device.type == "cuda" and stored.dtype == torch.float16 and centre is None and final_scale is None:
            self._halves = stored, scale
        if not self._is_final and 4 * self.n * self.d <= COPY_BYTES[kind]:
            copy = torch.empty((self.n, self.d), dtype=torch.float32, device=self.device)
            for rows in self.slices():
                copy[rows] = self.block(rows)
            self._stored, self._transform = copy, (None, None, None, None)

    def slices(self, block_rows: int | None = None) -> Iterator[slice]:
        """Cut the rows into consecutive blocks."""
        step = block_rows or self.block_rows
        for start in range(0, self.n, step):
            raise_if_stopped()
            yield slice(start, min(start + step, self.n))

    def block(self, rows: slice) -> Tensor:
        """Return consecutive rows, (b, d) float32."""
        return self.take(rows)

    def take(self, rows: slice | Tensor) -> Tensor:
        """Return consecutive rows, or those of an index (b,): (b, d) float32."""
        scale, centre, inverse_deviation, final_scale = self._transform
        block = self._stored[rows]
        if self._is_final:
            return block
        block = block.to(torch.float32, copy=True)
        if scale is not None:
            block.mul_(scale[rows, None])
        if centre is not None and inverse_deviation is not None:
            block.sub_(centre).mul_(inverse_deviation)
        if final_scale is not None:
            block.mul_(final_scale[rows, None])
        return block

    def factor(self, rows: slice | Tensor) -> Factor:
        """Return consecutive rows, or those of an index (b,), to be multiplied with others."""
        if self._halves is None:
            return Factor(self.take(rows), None)
        stored, scale = self._halves
        return Factor(stored[rows], None if scale is None else scale[rows])

    def only(self, index: Tensor) -> "Rows":
        """Return some rows (b,) as separate rows, in the type that they are stored in."""
        scale, centre, inverse_deviation, final_scale = self._transform
        own, final = (None if factor is None else factor[index] for factor in (scale, final_scale))
        return Rows(self._stored[index], own, centre, inverse_deviation, final)

    def standard(self) -> Standard:
        """Compute the mean and the standard deviation of every dimension."""
        total = torch.zeros(self.d, dtype=torch.float64, device=self.device)
        for rows in self.slices():
            total += self.block(rows).sum(0, dtype=torch.float64)
        centre = (total / self.n).float()
        squares = torch.zeros_like(total)
        for rows in self.slices():
            squares += (self.block(rows) - centre).square_().sum(0, dtype=torch.float64)
        return Standard.of(centre, squares / self.n)

    def standardised(self, standard: Standard | None = None) -> "Rows":
        """Centre and scale every dimension, by default by its own mean and deviation, then every row to length sqrt(d).

        A dimension that does not vary becomes zero, and so does a row that is at the mean.
        """
        centre, inverse = standard or self.standard()
        norms = torch.cat(
            [torch.linalg.vector_norm((self.block(rows) - centre).mul_(inverse), dim=1) for rows in self.slices()]
        )
        length = self.d**0.5
        final_scale = torch.where(norms > AT_THE_MEAN * length, length / norms, 0.0)
        return Rows(self._stored, self._transform[0], centre, inverse, final_scale)

    def dot(self, vectors: Tensor) -> Tensor:
        """Multiply every row with (d,) or (d, m): (n,) or (n, m) float32."""
        if self._is_final:
            return self._stored @ vectors
        products = torch.empty((self.n, *vectors.shape[1:]), device=self.device)
        for rows in self.slices(self._narrow_rows if vectors.dim() == 1 else None):
            products[rows] = self._unscaled(rows) @ vectors
        scale = self._row_scale
        return products if scale is None else products.mul_(scale if vectors.dim() == 1 else scale[:, None])

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Sum the rows under weights or over masks, (n,) or (G, n): (d,) or (G, d) float64."""
        total = torch.zeros((*weights.shape[:-1], self.d), dtype=torch.float64, device=self.device)
        if weights.dim() == 1 and 2 * int(torch.count_nonzero(weights)) < self.n:  # reads the rows that count only
            for part in torch.split(weights.nonzero()[:, 0], self._narrow_rows):
                total += weights[part].float() @ self.take(part)
            return total
        scale = self._row_scale
        for rows in self.slices(None if self._is_final or weights.dim() > 1 else self._narrow_rows):
            shares = weights[..., rows].float()
            total += (shares if scale is None else shares * scale[rows]) @ self._unscaled(rows)
        return total

    def second_moment(self, index: Tensor, weights: Tensor | None = None) -> Tensor:
        """Sum w_i z_i z_i^T over some rows (b,), for weights (n,) of all rows, or 1 each: (d, d) float64."""
        total = torch.zeros((self.d, self.d), dtype=torch.float64, device=self.device)
        for part in torch.split(index, self.block_rows):
            block = self.take(part)
            weighed = block if weights is None else block * weights[part, None].float()
            for tile in self._tiles():
                total[tile.start :, tile] += block[:, tile.start :].T @ weighed[:, tile]
        for tile in self._tiles():
            total[tile, tile.stop :] = total[tile.stop :, tile].T
        return total

    def square_norms(self) -> Tensor:
        """Compute the squared length of every row: (n,) float32."""
        return torch.cat([self.block(rows).square().sum(1) for rows in self.slices()])

    def in_directions(self, directions: Tensor, squares: Tensor, factors: Tensor) -> "Rows":
        """Keep the parts in orthonormal directions (d, r), and the length of the rest times a factor: (n, r + 1) rows.

        `squares` are the squared lengths of the rows, and `factors` those of the rest, (n,) each.
        """
        r = directions.shape[1]
        kept = torch.empty((self.n, r + 1), device=self.device)
        for rows in self.slices():
            parts = self.block(rows) @ directions
            kept[rows, :r] = parts
            kept[rows, r] = (squares[rows] - parts.square_().sum(1)).clamp_(min=0).sqrt_() * factors[rows]
        return Rows(kept)

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
            block = self.block(rows)
            for tile, column in columns:
                found[rows] += (block[:, tile.start :] @ column).mul_(block[:, tile]).sum(1)
        return found

    def _tiles(self) -> list[slice]:
        """Cut the dimensions into tiles."""
        return [slice(start, min(start + TILE, self.d)) for start in range(0, self.d, TILE)]

    def principal_directions(self, count: int, generator: torch.Generator) -> Tensor:
        """Compute the main eigenvectors of the second moment of a sample of the rows: (d, count) float32."""
        sample = torch.randperm(self.n, generator=generator).to(self.device)[:PCA_ROWS]
        return self.eigenvectors(sample)[:, -count:].contiguous()

    def eigenvectors(self, index: Tensor) -> Tensor:
        """Compute the eigenvectors of the second moment of some rows (b,), the main ones last: (d, d) float32."""
        sample = torch.zeros(self.n, device=self.device)
        sample[index] = 1.0
        vectors: Tensor = torch.linalg.eigh(self.second_moment(sample.nonzero()[:, 0], sample)).eigenvectors
        return vectors.float()

    @property
    def _row_scale(self) -> Tensor | None:
        """What `_unscaled` leaves out, (n,) float32: products with vectors are scaled instead of the rows."""
        scale, centre, _, final_scale = self._transform
        if centre is not None or scale is None:
            return final_scale
        return scale if final_scale is None else scale * final_scale

    def _unscaled(self, rows: slice) -> Tensor:
        scale, centre, inverse_deviation, _ = self._transform
        block = self._stored[rows].float()
        if centre is None or inverse_deviation is None:
            return block
        return (block if scale is None else block * scale[rows, None]).sub(centre).mul_(inverse_deviation)

    @property
    def _is_final(self) -> bool:
        return self._stored.dtype == torch.float32 and all(part is None for part in self._transform)
