"""Penalise a selection for the near-duplicates in it: a sparse term of the objective, over pairs of similar documents.

A mean over all pairs, such as `pairwise`, does not see near-duplicates: in a selection of K documents a copy changes
the mean cosine by about 1/K. This term counts the pairs themselves.

Bounds write the weighted pairs as a sum of weighted cliques. Near-duplicates come in groups that are all similar to
each other. A bound over a group is far tighter than one over its pairs: with every member at one half no pair counts,
but a group of ten still holds five documents, and so ten pairs.
"""

from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.models.selection.graphs.pairs import Pairs, similar_pairs
from fineweb_mask.models.selection.metrics.base import EFFORT, SwapModel, Weighed
from fineweb_mask.models.selection.problem.token_budget import Knapsack
from fineweb_mask.models.selection.rows import Rows

LEAST_WEIGHT = 0.05  # for a pair at the threshold; identical documents have weight 1
NEGLIGIBLE = 1e-6  # weight of a pair that is left over from a clique by rounding
ALIKE = 0.5  # share of the clique's weight: a document joins if its pairs with all members weigh as much
MOST_PAIRS = 500_000  # that are covered by cliques: the heaviest; with the rest as pairs, a bound is valid but looser
MOST_LOOKS = 4_000_000  # at pairs while documents are penalised in the order of their gains: a tenth of a second
# Pairs looked at while cliques grow, a second in a million; what is left then stays pairs.
LEAST_WORK, WORK_PER_DOCUMENT = 1_000_000, 40


class NearDuplicates(Weighed):
    """Minus the weight of the pairs of near-duplicates in the selection, per selected document (ours).

    D = -(1/K) sum over pairs of w_ij m_i m_j, with w = min(1, 0.05 + (cosine - threshold) / (1 - threshold)) for pairs
    of at least the threshold.

    With masses a (a budget of tokens), w_ij is multiplied with min(a_i, a_j) and K becomes sum_i m_i a_i: two
    near-duplicates repeat the tokens of the shorter one.
    """

    swap_pool = 512  # few documents have near-duplicates

    def __init__(self, n: int, pairs: Pairs, weights: Tensor, knapsack: Knapsack | None = None) -> None:
        self.n, self.pairs, self.weights, self.knapsack = n, pairs, weights, knapsack  # weights (e,) float32, of pairs
        self.masses = None if knapsack is None else knapsack.masses
        self.documents, local = torch.unique(torch.cat([pairs.first, pairs.second]), return_inverse=True)
        partner = torch.cat([local[len(pairs) :], local[: len(pairs)]])
        order = local.sort(stable=True).indices
        self._partner, self._weight = partner[order], weights.repeat(2)[order]
        self._lengths = torch.bincount(local, minlength=len(self.documents))

    @classmethod
    def of(
        cls, rows: Rows, threshold: float, knapsack: Knapsack | None = None, pairs: Pairs | None = None
    ) -> "NearDuplicates":
        """Weigh the pairs of unit rows (n, d), found here if not given; for a budget of tokens by its masses."""
        pairs = similar_pairs(rows, threshold) if pairs is None else pairs
        masses = None if knapsack is None else knapsack.masses
        return cls(rows.n, pairs, weights_of(pairs, threshold, masses), knapsack)

    def value(self, masks: Tensor) -> Tensor:
        """Evaluate masks (G, n): (G,) float64."""
        both = masks[:, self.pairs.first] & masks[:, self.pairs.second]
        penalty = torch.where(both, self.weights, 0.0).sum(1, dtype=torch.float64)
        return -penalty / self.size(masks)

    def gradient(self, inclusion: Tensor) -> Tensor:
        """Compute -(1/K) sum_j w_ij pi_j: (n,) float32."""
        return self.penalties(inclusion.float()).div_(-float(self.size(inclusion)))

    def random_value(self, budget: float) -> float:
        """Compute the expected value of a uniform random subset."""
        total = float(self.weights.sum(dtype=torch.float64))
        return -total * max(budget - 1, 0) / max(self.n * (self.n - 1), 1)

    def restrict(self, index: Tensor) -> "NearDuplicates":
        """Return the metric over a batch of documents (b,)."""
        place = torch.full((self.n,), -1, device=index.device)
        place[index] = torch.arange(len(index), device=index.device)
        first, second = place[self.pairs.first], place[self.pairs.second]
        inside = (first >= 0) & (second >= 0)
        pairs = Pairs(first[inside], second[inside], self.pairs.cosine[inside], self.pairs.complete)
        knapsack = None if self.knapsack is None else self.knapsack.restrict(index)
        return NearDuplicates(len(index), pairs, self.weights[inside], knapsack)

    def gains(self, budget: float, weight: float) -> "NearDuplicateGains":
        """Return the marginal gains of weight * D, for an empty selection."""
        return NearDuplicateGains(self, weight / budget)

    def tangent(self, inclusion: Tensor, budget: float, weight: float) -> "NearDuplicateTangent":
        """Return the tangent of weight * D at inclusion probabilities (n,).

        With a budget of tokens, D is divided by the largest mass of a full selection: penalties only fall by that.
        """
        largest = budget if self.knapsack is None else self.knapsack.masses_of_full[1]
        return NearDuplicateTangent(self, inclusion, weight / largest)

    @cached_property
    def cliques(self) -> "Cliques":
        """The pairs as a sum of weighted cliques."""
        return cover_with_cliques(self.n, self.pairs, self.weights)

    def swap_model(self, mask: Tensor, weight: float) -> SwapModel:
        """Describe what swaps change in weight * D, for a mask (n,)."""
        penalty = weight / float(self.size(mask))

        def cross(pool: Tensor) -> Tensor:
            inside = self.restrict(pool)
            matrix = torch.zeros((len(pool), len(pool)), device=pool.device)
            matrix[inside.pairs.first, inside.pairs.second] = inside.weights * penalty
            return matrix + matrix.T

        return SwapModel(weight * self.gradient(mask), cross)

    def penalised(self, gains: Tensor, penalty: float, costs: Tensor | None = None) -> Tensor:
        """Penalise every document for the partners that rank above it: gains (n,) float32 -> (n,) float32.

        Documents are taken in the order of their marginal gains after all penalties so far, with costs (n,) per cost,
        and each then penalises its partners with penalty * w_ij. The K largest results are therefore the greedy
        selection of K documents.
        """
        if not len(self.documents):
            return gains
        values = gains[self.documents].double().cpu().numpy()
        owners, partners, weights = self._sides
        penalties = weights * penalty
        if costs is None:
            penalised = _penalised(values, owners, partners, penalties)
        else:
            cost = costs[self.documents].cpu().numpy()
            penalised = _penalised(values / cost, owners, partners, penalties / cost[owners]) * cost
        gains = gains.clone()
        gains[self.documents] = torch.from_numpy(penalised).to(gains)
        return gains

    @cached_property
    def _sides(self) -> "tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]":
        """Every pair from either side: a place in `documents`, that of its partner, and the weight, (2e,) each."""
        owners = np.repeat(np.arange(len(self.documents)), self._lengths.cpu().numpy())
        return owners, self._partner.cpu().numpy(), self._weight.double().cpu().numpy()

    def independent(self, order: Tensor, most: int, lengths: Tensor | None = None) -> Tensor:
        """Take documents in an order (a,) int64, each unless a partner is taken, until there are `most`: (n,) bool.

        With lengths (n,) int64, `most` is their sum, and documents that no longer fit are passed over.
        """
        taken = torch.zeros(self.n, dtype=torch.bool, device=order.device)
        local = torch.full((self.n,), -1, device=order.device)
        local[self.documents] = torch.arange(len(self.documents), device=order.device)
        starts = np.concatenate([[0], self._lengths.cumsum(0).cpu().numpy()])
        partners, blocked = self._partner.cpu().numpy(), np.zeros(len(self.documents), dtype=bool)
        chosen: list[int] = []
        every = [1] * len(order) if lengths is None else lengths[order].tolist()
        least = min(every, default=1)
        for document, place, length in zip(order.tolist(), local[order].tolist(), every, strict=True):
            if most < least:
                break
            if length > most:
                continue
            if place >= 0:
                if blocked[place]:
                    continue
                blocked[partners[starts[place] : starts[place + 1]]] = True
            chosen.append(document)
            most -= length
        taken[chosen] = True
        return taken

    def partners(self, document: int) -> tuple[Tensor, Tensor]:
        """Return the partners of a document (a,) int64 and the weights of the pairs (a,) float32."""
        place = int(torch.searchsorted(self.documents, document))
        if place == len(self.documents) or int(self.documents[place]) != document:
            return self.documents[:0], self._weight[:0]
        start = int(self._lengths[:place].sum())
        part = slice(start, start + int(self._lengths[place]))
        return self.documents[self._partner[part]], self._weight[part]

    def penalties(self, values: Tensor) -> Tensor:
        """Sum w_ij values_j over the partners of each document, (n,) -> (n,) float32; deterministic on any device."""
        penalties = torch.zeros(self.n, device=values.device)
        if len(self.documents):
            terms = values[self.documents][self._partner] * self._weight
            penalties[self.documents] = torch.segment_reduce(terms, "sum", lengths=self._lengths, initial=0.0)
        return penalties


def weights_of(pairs: Pairs, threshold: float, masses: Tensor | None = None) -> Tensor:
    """Compute the weights of pairs of documents that are at least a threshold similar, (e,) float32."""
    over = (pairs.cosine - threshold) / max(1 - threshold, 1e-6)
    weights = (LEAST_WEIGHT + over).clamp_(max=1.0)
    return weights if masses is None else weights * torch.minimum(masses[pairs.first], masses[pairs.second])


def _penalised(
    values: NDArray[np.float64],  # (a,)
    documents: NDArray[np.int64],  # (2e,), the document of every pair, once on either side
    partners: NDArray[np.int64],  # (2e,)
    penalties: NDArray[np.float64],  # (2e,), of the document by its partner
) -> NDArray[np.float64]:
    """Take all documents at once that rank above their remaining partners: only those could still penalise them.

    Where documents are alike in large numbers, those left after a while are penalised by all that rank above them.
    """
    values, looks = values.copy(), 0
    while len(documents):
        own, other = values[documents], values[partners]
        below = (other > own) | ((other == own) & (partners < documents))
        looks += len(documents)
        if looks > MOST_LOOKS:
            return values - np.bincount(documents, penalties * below, minlength=len(values))
        taken = np.ones(len(values), dtype=bool)
        taken[documents[below]] = False
        settled = taken[partners]
        values -= np.bincount(documents, penalties * settled, minlength=len(values))
        rest = ~(settled | taken[documents])
        documents, partners, penalties = documents[rest], partners[rest], penalties[rest]
    return values


class NearDuplicateGains:
    """The gains of the weighted term: minus the penalties of the partners selected so far."""

    def __init__(self, metric: NearDuplicates, penalty: float) -> None:
        self.metric, self.penalty = metric, penalty
        self._gains = torch.zeros(metric.n, device=metric.weights.device)

    def gains(self) -> Tensor:
        """Return every document's gain, (n,) float32."""
        return self._gains

    def restart(self, mask: Tensor) -> None:
        """Begin with a selection, mask (n,) bool."""
        self._gains = self.metric.penalties(mask.float()) * -self.penalty

    def among(self, index: Tensor) -> "NearDuplicateGains":
        """Return the gains of documents (b,) alone, from the present selection on."""
        gains = NearDuplicateGains(self.metric.restrict(index), self.penalty)
        gains._gains = self._gains[index]
        return gains

    def add(self, document: int) -> None:
        """Add a document."""
        partners, weights = self.metric.partners(document)
        self._gains[partners] -= self.penalty * weights


class NearDuplicateTangent:
    """A linear function that is never below the weighted term, from one dual price per clique.

    A clique of weight w with s selected members holds s (s - 1) / 2 pairs, and for any dual price p >= 0

        s (s - 1) / 2 >= p s - c(p),        c(p) = max over whole s of p s - s (s - 1) / 2,

    so that each member costs p w, and the constant c(p) w is given back.
    """

    effort = EFFORT
    of_shares: bool | None = False  # it holds for every mask within a budget of tokens

    def __init__(self, metric: NearDuplicates, inclusion: Tensor, penalty: float) -> None:
        self.cliques, self.penalty = metric.cliques, penalty
        self.dual_price = (self.cliques.sums(inclusion) - 0.5).clamp_(min=0)

    def evaluate(self) -> tuple[float, Tensor]:
        """Return the height and the slope of every document, (n,) float64."""
        weights = self.cliques.weights * self.penalty
        size = self.dual_price.floor() + 1  # the whole s of the maximum
        height = float((weights * (self.dual_price * size - size * (size - 1) / 2)).sum())
        return height, -self.cliques.spread(weights * self.dual_price)

    def descend(self, mask: Tensor, fall: float) -> None:
        """Move the dual prices, each by its gradient per weight: else long documents would hold back all others."""
        rest = self.dual_price.floor() + 1 - self.cliques.sums(mask)
        rest[(self.dual_price <= 0) & (rest > 0)] = 0
        fallen = self.penalty * float((self.cliques.weights * rest.square()).sum())
        if fallen > 0:
            self.dual_price = (self.dual_price - rest * (fall / fallen)).clamp_(min=0)


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
    covered, rest = (
        torch.as_tensor(part, device=weights.device) for part in (order[:MOST_PAIRS], np.sort(order[MOST_PAIRS:]))
    )
    first, second = pairs.first[covered].tolist(), pairs.second[covered].tolist()
    most_work = max(LEAST_WORK, WORK_PER_DOCUMENT * n)
    cover = _Cover(first, second, weights[covered].double().tolist(), most_work)
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

    def __init__(self, first: list[int], second: list[int], weights: list[float], most_work: int) -> None:
        self._left: dict[int, dict[int, float]] = {}
        for i, j, weight in zip(first, second, weights, strict=True):
            self._left.setdefault(i, {})[j] = weight
            self._left.setdefault(j, {})[i] = weight
        self._work, self._most_work = 0, most_work

    def grow(self, first: list[int], second: list[int]) -> tuple[list[int], list[int], list[float]]:
        """Cover the pairs, in their order: members of all cliques, one after the other, their sizes and weights."""
        members: list[int] = []
        sizes: list[int] = []
        weights: list[float] = []
        for i, j in zip(first, second, strict=True):
            while (weight := self._left[i].get(j, 0.0)) > NEGLIGIBLE and self._work <= self._most_work:
                raise_if_stopped()
                clique, weight = self._clique(i, j, weight)
                self._subtract(clique, weight)
                members += clique
                sizes.append(len(clique))
                weights.append(weight)
            if weight > NEGLIGIBLE:
                members += [i, j]
                sizes.append(2)
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
