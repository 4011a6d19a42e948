"""Write weighted pairs as a sum of weighted cliques, for bounds on how many of the pairs a selection holds.

Near-duplicates come in groups that are all similar to each other. A bound over a group is far tighter than one over its
pairs: with every member at one half no pair counts, but a group of ten still holds five documents, and so ten pairs.
"""

import numpy as np
import torch
from torch import Tensor

from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.models.selection.graphs.pairs import Pairs

NEGLIGIBLE = 1e-6  # weight of a pair that is left over from a clique by rounding
ALIKE = 0.5  # share of the clique's weight: a document joins if its pairs with all members weigh as much
MOST_PAIRS = 1_000_000  # that are covered by cliques: the heaviest; with the rest as pairs, a bound is valid but looser
MOST_WORK = 10_000_000  # pairs looked at while cliques grow, a few seconds; what is left then stays pairs


class Cliques:
    """Groups of documents and their weights; a pair's weight is the sum over the groups that hold both documents."""

    def __init__(self, n: int, members: Tensor, sizes: Tensor, weights: Tensor) -> None:
        self.n = n
        self.weights = weights  # (c,) float64
        self._members, self._sizes = members, sizes  # (l,) int64: one clique after the other, and their lengths (c,)
        self._documents, place = torch.unique(members, return_inverse=True)
        self._order = place.sort(stable=True).indices
        self._owner = torch.arange(len(sizes), device=members.device).repeat_interleave(sizes)[self._order]
        self._counts = torch.bincount(place, minlength=len(self._documents))

    def sums(self, values: Tensor) -> Tensor:
        """Sum values (n,) over the members of each clique: (c,) float64."""
        return _segment_sums(values[self._members].double(), self._sizes)

    def spread(self, values: Tensor) -> Tensor:
        """Sum the values (c,) float64 of the cliques that hold each document: (n,) float64."""
        sums = torch.zeros(self.n, dtype=torch.float64, device=self.weights.device)
        sums[self._documents] = _segment_sums(values[self._owner], self._counts)
        return sums


def _segment_sums(values: Tensor, lengths: Tensor) -> Tensor:
    """Sum consecutive segments; the same bit for bit on every run, which CUDA's `index_add_` is not."""
    return torch.segment_reduce(values, "sum", lengths=lengths, initial=0.0) if len(lengths) else values


def cover_with_cliques(n: int, pairs: Pairs, weights: Tensor) -> Cliques:
    """Cover pairs of weights (e,) float32: grow a clique from the heaviest pair left, and subtract its least weight.

    Where documents are alike in large numbers, pairs remain, each its own clique.
    """
    order = np.argsort(-weights.double().cpu().numpy(), kind="stable")
    covered, rest = (torch.as_tensor(part, device=weights.device) for part in (order[:MOST_PAIRS], order[MOST_PAIRS:]))
    first, second = pairs.first[covered].tolist(), pairs.second[covered].tolist()
    cover = _Cover(first, second, weights[covered].double().tolist())
    members, sizes, of_clique = cover.grow(first, second)
    left = torch.stack([pairs.first[rest], pairs.second[rest]], dim=1).flatten().to(torch.int64)
    device = weights.device
    return Cliques(
        n,
        torch.cat([torch.tensor(members, dtype=torch.int64, device=device), left]),
        torch.cat([torch.tensor(sizes, dtype=torch.int64, device=device), torch.full_like(rest, 2)]),
        torch.cat([torch.tensor(of_clique, dtype=torch.float64, device=device), weights[rest].double()]),
    )


class _Cover:
    """The weights of pairs that are not covered yet."""

    def __init__(self, first: list[int], second: list[int], weights: list[float]) -> None:
        self._left: dict[int, dict[int, float]] = {}
        for i, j, weight in zip(first, second, weights, strict=True):
            self._left.setdefault(i, {})[j] = weight
            self._left.setdefault(j, {})[i] = weight
        self._work = 0

    def grow(self, first: list[int], second: list[int]) -> tuple[list[int], list[int], list[float]]:
        """Cover the pairs, in their order: members of all cliques, one after the other, their sizes and weights."""
        members: list[int] = []
        sizes: list[int] = []
        weights: list[float] = []
        for i, j in zip(first, second, strict=True):
            while (weight := self._left[i].get(j, 0.0)) > NEGLIGIBLE:
                raise_if_stopped()
                clique, weight = ([i, j], weight) if self._work > MOST_WORK else self._clique(i, j, weight)
                self._subtract(clique, weight)
                members += clique
                sizes.append(len(clique))
                weights.append(weight)
        return members, sizes, weights

    def _clique(self, i: int, j: int, weight: float) -> tuple[list[int], float]:
        """Grow a clique from a pair: its members, and its least weight."""
        left = self._left
        clique, common = [i, j], {k: min(w, left[j][k]) for k, w in left[i].items() if k in left[j]}
        self._work += len(left[i])
        while common:
            best = max(common, key=lambda k: (common[k], -k))
            if common[best] < ALIKE * weight:
                break
            weight = min(weight, common[best])
            clique.append(best)
            self._work += len(common) + len(clique)
            common = {k: min(w, left[best][k]) for k, w in common.items() if k in left[best]}
        return clique, weight

    def _subtract(self, clique: list[int], weight: float) -> None:
        left = self._left
        for a in clique:
            for b in clique:
                if a != b and (rest := left[a][b] - weight) > NEGLIGIBLE:
                    left[a][b] = rest
                elif a != b:
                    del left[a][b]
