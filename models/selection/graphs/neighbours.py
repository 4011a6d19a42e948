"""Find the exact nearest documents of every document, for facility location and near-duplicates.

Similarity is symmetric, so every pair of blocks is multiplied once and read from both sides. The lists are running
top-k, so memory is two lists and one block of products for any n.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import combinations_with_replacement

import torch
from torch import Tensor

from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.selection.rows import Rows

PRODUCT_ELEMENTS = {"cpu": 1 << 25, "cuda": 1 << 29}  # entries of one block of similarities (float32)


@dataclass(frozen=True)
class Neighbours:
    """The k most similar documents of every document, nearest first; each document is its own first neighbour.

    The arrays are rank-major: `index[j]` is one contiguous vector over the documents.
    """

    index: Tensor  # (k, n) int64
    similarity: Tensor  # (k, n) float32, at least 0, descending along k

    @property
    def k(self) -> int:
        """Length of the lists."""
        return len(self.index)

    def sum_back(self, values: Tensor) -> Tensor:
        """Sum the values (k, n) of all list entries that are the same document: (n,) float32.

        Deterministic on both devices: CUDA's scatter_add is not, so there the sum runs over sorted segments.
        """
        n = self.index.shape[1]
        flat = self.index.view(-1)
        if values.device.type == "cpu":
            return torch.zeros(n, dtype=values.dtype).scatter_add_(0, flat, values.reshape(-1))
        order, lengths = self._segments
        return torch.segment_reduce(values.reshape(-1)[order], "sum", lengths=lengths)

    @cached_property
    def _segments(self) -> tuple[Tensor, Tensor]:
        flat = self.index.view(-1)
        return torch.argsort(flat, stable=True), torch.bincount(flat, minlength=self.index.shape[1])


def nearest(rows: Rows, k: int) -> Neighbours:
    """Find the min(k, n) most similar documents of each unit row (n, d), itself included, by exact blocked products.

    Similarities below 0 count as 0: facility location never uses them.
    """
    n, device = rows.n, rows.device
    k = min(k, n)
    # -1 means "none yet": it loses against every similarity, because these are clamped to 0 or more
    similarity = torch.full((n, k), -1.0, device=device)
    index = torch.zeros((n, k), dtype=torch.int32, device=device)
    side = max(k, min(n, int(PRODUCT_ELEMENTS[device.type] ** 0.5)))
    blocks = list(rows.slices(side))
    for left, right in track("blocks of neighbours", list(combinations_with_replacement(blocks, 2))):
        if right is left:
            left_rows = rows.block(left)
            products = (left_rows @ left_rows.T).clamp_(min=0)
            products.fill_diagonal_(2.0)  # a document comes first in its own list, before its duplicates
        else:
            products = (left_rows @ rows.block(right).T).clamp_(min=0)
            _keep_best(similarity[right], index[right], products.T, left.start)
        _keep_best(similarity[left], index[left], products, right.start)
    similarity.clamp_(max=1.0)
    return Neighbours(index.T.long().contiguous(), similarity.T.contiguous())


def _keep_best(similarity: Tensor, index: Tensor, products: Tensor, first: int) -> None:
    """Merge a block of products (m, c) into the running lists (m, k), in place."""
    k = similarity.shape[1]
    best, position = products.topk(min(k, products.shape[1]), dim=1)
    merged, place = torch.cat([similarity, best], dim=1).topk(k, dim=1)
    candidates = torch.cat([index, position.int() + first], dim=1)
    similarity.copy_(merged)
    index.copy_(candidates.gather(1, place))
