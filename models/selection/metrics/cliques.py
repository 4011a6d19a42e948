"""Write weighted pairs as a sum of weighted cliques, for bounds on how many of the pairs a selection holds.

Near-duplicates come in groups that are all similar to each other. A bound over a group is far tighter than one over its
pairs: with every member at one half no pair counts, but a group of ten still holds five documents, and so ten pairs.
"""

import numpy as np
import torch
from torch import Tensor

from fineweb_mask.models.selection.graphs.pairs import Pairs

NEGLIGIBLE = 1e-6  # weight of a pair that is left over from a clique by rounding
ALIKE = 0.5  # of the clique's weight: a document joins if its pairs with all members weigh as much


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
    """Cover pairs of weights (e,) float32: grow a clique from the heaviest pair left, and subtract its least weight."""
    left: dict[int, dict[int, float]] = {}
    first, second = pairs.first.tolist(), pairs.second.tolist()
    values = weights.double().cpu().numpy()
    for i, j, weight in zip(first, second, values.tolist(), strict=True):
        left.setdefault(i, {})[j] = weight
        left.setdefault(j, {})[i] = weight
    members: list[int] = []
    sizes: list[int] = []
    of_clique: list[float] = []
    for place in np.argsort(-values, kind="stable").tolist():
        i, j = first[place], second[place]
        while (weight := left[i].get(j, 0.0)) > NEGLIGIBLE:
            clique, common = [i, j], {k: min(w, left[j][k]) for k, w in left[i].items() if k in left[j]}
            while common:
                best = max(common, key=lambda k: (common[k], -k))
                if common[best] < ALIKE * weight:
                    break
                weight = min(weight, common[best])
                clique.append(best)
                common = {k: min(w, left[best][k]) for k, w in common.items() if k in left[best]}
            for a in clique:
                for b in clique:
                    if a != b and (rest := left[a][b] - weight) > NEGLIGIBLE:
                        left[a][b] = rest
                    elif a != b:
                        del left[a][b]
            members += clique
            sizes.append(len(clique))
            of_clique.append(weight)
    device = weights.device
    return Cliques(
        n,
        torch.tensor(members, dtype=torch.int64, device=device),
        torch.tensor(sizes, dtype=torch.int64, device=device),
        torch.tensor(of_clique, dtype=torch.float64, device=device),
    )
