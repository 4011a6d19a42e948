"""Find the pairs of documents whose cosine reaches a threshold: all of them, or those that lists of neighbours hold.

Most pairs are ruled out in a few principal directions. With a row split into its part a in these directions and the
length r of the rest, the cosine of two rows is at most <a, a'> + r r', one product of short rows. Only pairs that pass
are multiplied in full.
"""

from dataclasses import dataclass
from itertools import combinations_with_replacement

import torch
from torch import Tensor

from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.selection.graphs.neighbours import Neighbours
from fineweb_mask.models.selection.rows import PCA_ROWS, Rows

DIRECTIONS = (64, 128, 256)  # directions of the first product: the fewest that let few enough pairs pass
FEW = 1e-4  # share of the pairs, at d = 768: multiplying more of them costs more than the first product
TRIED_ROWS = 1024  # rows of the sample on which the number of directions is tried
BLOCK_ROWS = {"cpu": 1536, "cuda": 16_384}  # rows on each side of one product
ROUNDING = 1e-3  # error of a product of short rows, which are stored as float16, of length 1
MOST_NEIGHBOURS = 64  # pairs kept per document: all above the threshold unless there are very many
PRUNED_AT = 1 << 24  # stored pairs above which those beyond the nearest `MOST_NEIGHBOURS` are dropped


@dataclass(frozen=True)
class Pairs:
    """Pairs of different documents, each once, sorted by the first document and then the second."""

    first: Tensor  # (e,) int64, the smaller number
    second: Tensor  # (e,) int64
    cosine: Tensor  # (e,) float32
    complete: bool = True  # whether every pair above the threshold is held

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self.first)

    def nearest(self, most: int) -> "Pairs":
        """Keep the pairs that are among the `most` nearest of either document."""
        kept = (self._ranks() < most).any(0)
        return Pairs(self.first[kept], self.second[kept], self.cosine[kept], self.complete and bool(kept.all()))

    def _ranks(self) -> Tensor:
        """Rank every pair among those of its first and of its second document, nearest first: (2, e) int64."""
        documents = torch.cat([self.first, self.second])
        order = self.cosine.repeat(2).sort(descending=True, stable=True).indices
        order = order[documents[order].sort(stable=True).indices]
        sizes = torch.bincount(documents)
        starts = sizes.cumsum(0) - sizes
        ranks = torch.empty_like(documents)
        ranks[order] = torch.arange(len(documents), device=documents.device) - starts[documents[order]]
        return ranks.view(2, -1)


def similar_pairs(rows: Rows, threshold: float, most_neighbours: int = MOST_NEIGHBOURS) -> Pairs:
    """Find the pairs of unit rows (n, d) with a cosine of at least `threshold`.

    A document with more than `most_neighbours` of them keeps the nearest, and those that are among the nearest of the
    other document. The result does not depend on the order in which blocks are multiplied.
    """
    short = _shortened(rows, threshold)
    side = BLOCK_ROWS[rows.device.type]
    blocks = list(rows.slices(side))
    none = torch.empty(0, dtype=torch.int64, device=rows.device)
    found = Pairs(none, none, none.float())
    for left, right in track("blocks of near-duplicates", list(combinations_with_replacement(blocks, 2))):
        product = short.factor(left).products(short.factor(right))
        if left is right:
            product = product.triu_(diagonal=1)
        passing = (product.amax(1) >= threshold - ROUNDING).nonzero()[:, 0]  # most rows have no pair in a block
        first, second = (product[passing] >= threshold - ROUNDING).nonzero().unbind(1)
        if not len(first):
            continue
        first, second = passing[first] + left.start, second + right.start
        cosine = torch.cat(
            [
                (rows.take(i) * rows.take(j)).sum(1)
                for i, j in zip(first.split(rows.block_rows), second.split(rows.block_rows), strict=True)
            ]
        )
        above = cosine >= threshold
        found = Pairs(
            torch.cat([found.first, first[above]]),
            torch.cat([found.second, second[above]]),
            torch.cat([found.cosine, cosine[above]]),
            found.complete,
        )
        if len(found) > PRUNED_AT:
            found = found.nearest(most_neighbours)
    found = found.nearest(most_neighbours)
    order = (found.first * rows.n + found.second).argsort()
    return Pairs(found.first[order], found.second[order], found.cosine[order].clamp_(max=1.0), found.complete)


def listed_pairs(lists: Neighbours, threshold: float) -> Pairs:
    """Read the pairs with a cosine of at least `threshold` off lists of neighbours, whose approximate ones miss few.

    Lists that hold 97% of the nearest 64 hold 99.9% of the nearest 16.
    """
    ranks, documents = (lists.similarity[1:] >= threshold).nonzero().unbind(1)
    others = lists.index[1:][ranks, documents].long()
    n = lists.index.shape[1]
    key = torch.minimum(documents, others) * n + torch.maximum(documents, others)
    order = key.sort(stable=True).indices
    key, place = key[order], order
    is_first = torch.ones_like(key, dtype=torch.bool)
    is_first[1:] = key[1:] != key[:-1]  # a pair is listed by either document
    key, place = key[is_first], place[is_first]
    complete = lists.missed is None and not bool((lists.similarity[-1] >= threshold).any() and lists.k < n)
    return Pairs(key // n, key % n, lists.similarity[1:][ranks[place], documents[place]], complete)


def _shortened(rows: Rows, threshold: float) -> Rows:
    """Return rows (n, m) whose inner products are never below the cosines, up to rounding.

    Where no number of directions rules out enough pairs, these are the rows themselves.
    """
    if rows.d <= DIRECTIONS[-1]:
        return rows
    directions = rows.eigenvectors(torch.arange(0, rows.n, max(1, rows.n // PCA_ROWS), device=rows.device))
    some = rows.take(torch.arange(0, rows.n, max(1, rows.n // TRIED_ROWS), device=rows.device))
    for count in DIRECTIONS:
        tried = _split(some, directions, count)
        passing = (tried @ tried.T >= threshold - ROUNDING).sum() - len(tried)
        if int(passing) <= FEW * len(tried) ** 2:
            short = torch.empty((rows.n, count + 1), dtype=torch.float16, device=rows.device)
            for part in rows.slices():
                short[part] = _split(rows.block(part), directions, count)
            return Rows(short)
    return rows


def _split(rows: Tensor, directions: Tensor, count: int) -> Tensor:
    """Return the parts of unit rows (b, d) in the last directions, and the length of the rest: (b, count + 1)."""
    parts = rows @ directions[:, -count:]
    rest = (1 - parts.square().sum(1)).clamp_(min=0).sqrt()
    return torch.cat([parts, rest[:, None]], dim=1)
