"""Find the nearest documents of every document, for facility location and near-duplicates.

Lists are exact. Similarity is symmetric, so every pair of blocks is multiplied once and read from both sides. The lists
are running top-k, so memory is two lists (256 bytes a document for 32 neighbours), a third while they are turned, and
one block of products for any n. The products grow with the square of n: a large corpus is selected from in blocks.

Lists from an inverted file were tried: on web pages and posts, whose vectors have few groups, they take as many
products.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import combinations_with_replacement

import torch
from torch import Tensor

from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.selection.rows import Rows

PRODUCT_ELEMENTS = {"cpu": 1 << 24, "cuda": 1 << 30}  # entries of one block of similarities (float32)
SIDE = 512  # its sides are multiples of this: other ones are multiplied and ranked at half the speed
BUNDLE = 8  # columns whose maximum stands for them in a first round of top-k: half the time of one round
NARROW = 4  # blocks of up to this * k columns are merged as they are, in one round


@dataclass(frozen=True)
class Neighbours:
    """The k most similar documents of every document, nearest first; each document is its own first neighbour.

    No document outside of a list is nearer than the last in it. The arrays are rank-major: `index[j]` is one contiguous
    vector over the documents.
    """

    index: Tensor  # (k, n) int32
    similarity: Tensor  # (k, n) float32, exact cosines, at least 0, descending along k

    @property
    def k(self) -> int:
        """Length of the lists."""
        return len(self.index)

    def nearest(self, k: int) -> "Neighbours":
        """Return the first k of every list."""
        return Neighbours(self.index[:k], self.similarity[:k])

    def take(self, values: Tensor) -> Tensor:
        """Return the value (n,) of the document at every place of the lists: (k, n)."""
        return values.index_select(0, self.index.view(-1)).view(self.index.shape)

    def sum_back(self, values: Tensor) -> Tensor:
        """Sum the values (k, n) of all places that hold the same document: (n,) float32.

        Deterministic on both devices: CUDA's index_add is not, so there the sum runs over sorted segments.
        """
        if self.index.device.type == "cpu":
            return torch.zeros(self.index.shape[1]).index_add_(0, self.index.view(-1), values.view(-1))
        order, lengths = self.segments
        return torch.segment_reduce(values.view(-1)[order], "sum", lengths=lengths)

    @cached_property
    def segments(self) -> tuple[Tensor, Tensor]:
        """The places of the lists, sorted by the document there, (k n,), and how many each document has, (n,)."""
        flat = self.index.view(-1)
        return torch.argsort(flat, stable=True), torch.bincount(flat, minlength=self.index.shape[1])


def nearest(rows: Rows, k: int) -> Neighbours:
    """Find the min(k, n) most similar documents of each unit row (n, d), itself included, by exact blocked products.

    Similarities below 0 count as 0: facility location never uses them.
    """
    n = rows.n
    k = min(k, n)
    similarity = torch.full((n, k), -1.0, device=rows.device)  # none yet: it loses against all, which are 0 or more
    index = torch.zeros((n, k), dtype=torch.int32, device=rows.device)
    everyone = torch.arange(n, dtype=torch.int32, device=rows.device)
    root = int(PRODUCT_ELEMENTS[rows.device.type] ** 0.5)
    side = max(k, min(n, root // SIDE * SIDE or root))
    blocks = list(rows.slices(side))
    for left, right in track("blocks of neighbours", list(combinations_with_replacement(blocks, 2))):
        if right is left:
            products = rows.products(left, left).clamp_(min=0)
            products.fill_diagonal_(2.0)  # a document comes first in its own list, before its duplicates
        else:
            products = rows.products(left, right).clamp_(min=0)
            similarity[right], index[right] = _merge(similarity[right], index[right], products.T, everyone[left])
        similarity[left], index[left] = _merge(similarity[left], index[left], products, everyone[right])
    similarity = similarity.clamp_(max=1.0).T.contiguous()  # one after the other: the lists are large
    return Neighbours(index.T.contiguous(), similarity)


def _merge(
    similarity: Tensor,  # (m, k)
    index: Tensor,  # (m, k) int32
    products: Tensor,  # (m, c)
    candidates: Tensor,  # (c,) int32
) -> tuple[Tensor, Tensor]:
    """Merge a block of products into running lists."""
    k = similarity.shape[1]
    if len(candidates) <= NARROW * k:
        best, found = products, candidates.expand(len(products), -1)
    else:
        best, position = _largest(products, k)
        found = candidates[position]
    merged, place = torch.cat([similarity, best], dim=1).topk(k, dim=1)
    return merged, torch.cat([index, found], dim=1).gather(1, place)


def _largest(products: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Find the k largest of each row (m, c) and their columns, (m, k), unsorted columns among equals.

    Bundles of `BUNDLE` columns are ranked by their maximum first: the k largest lie in the k best bundles.
    """
    rows, columns = products.shape
    if columns % BUNDLE or columns < 4 * BUNDLE * k:
        return products.topk(k, dim=1)
    width = columns // BUNDLE
    if products.is_contiguous():
        maxima = products.view(rows, BUNDLE, width).amax(1)
    else:  # a transposed block is reduced in the order of its memory
        maxima = products.T.view(BUNDLE, width, rows).amax(0).T
    bundles = maxima.topk(k, dim=1, sorted=False).indices
    inside = products.view(rows, BUNDLE, width).gather(2, bundles[:, None].expand(-1, BUNDLE, -1)).flatten(1)
    values, place = inside.topk(k, dim=1)
    return values, bundles.gather(1, place % k) + place // k * width
