"""Charge a selection for the near-duplicates in it: a sparse term of the objective, over pairs of similar documents.

A mean over all pairs, such as `pairwise`, does not see near-duplicates: in a selection of K documents a copy changes
the mean cosine by about 1/K. This term counts the pairs themselves.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fineweb_mask.models.selection.graphs.pairs import Pairs, similar_pairs
from fineweb_mask.models.selection.metrics.base import Effort, SwapModel, Weighed
from fineweb_mask.models.selection.metrics.cliques import Cliques, cover_with_cliques
from fineweb_mask.models.selection.problem.token_budget import Knapsack
from fineweb_mask.models.selection.rows import Rows

LEAST_WEIGHT = 0.05  # of a pair at the threshold; identical documents have weight 1


class NearDuplicates(Weighed):
    """Minus the weight of the pairs of near-duplicates in the selection, per selected document (ours).

    D = -(1/K) sum over pairs of w_ij m_i m_j, with w = min(1, 0.05 + (cosine - threshold) / (1 - threshold)) for pairs
    of at least the threshold.

    With masses a (a budget of tokens), w_ij is multiplied with min(a_i, a_j) and K becomes sum_i m_i a_i: two
    near-duplicates repeat the tokens of the shorter one.
    """

    swap_pool = 512  # few documents have near-duplicates
    swaps_as_promised = True

    def __init__(self, n: int, pairs: Pairs, weights: Tensor, knapsack: Knapsack | None = None) -> None:
        self.n, self.pairs, self.weights, self.knapsack = n, pairs, weights, knapsack  # weights (e,) float32, of pairs
        self.masses = None if knapsack is None else knapsack.masses
        self.documents, local = torch.unique(torch.cat([pairs.first, pairs.second]), return_inverse=True)
        partner = torch.cat([local[len(pairs) :], local[: len(pairs)]])
        order = local.sort(stable=True).indices
        self._partner, self._weight = partner[order], weights.repeat(2)[order]
        self._lengths = torch.bincount(local, minlength=len(self.documents))
        self._cliques: Cliques | None = None

    @classmethod
    def of(cls, rows: Rows, threshold: float, knapsack: Knapsack | None = None) -> "NearDuplicates":
        """Find the pairs of unit rows (n, d) and weigh them, for a budget of tokens by its masses."""
        pairs, masses = similar_pairs(rows, threshold), None if knapsack is None else knapsack.masses
        return cls(rows.n, pairs, weights_of(pairs, threshold, masses), knapsack)

    def value(self, masks: Tensor) -> Tensor:
        """Evaluate masks (G, n): (G,) float64."""
        both = masks[:, self.pairs.first] & masks[:, self.pairs.second]
        charged = torch.where(both, self.weights, 0.0).sum(1, dtype=torch.float64)
        return -charged / self.size(masks)

    def gradient(self, inclusion: Tensor) -> Tensor:
        """Compute -(1/K) sum_j w_ij pi_j: (n,) float32."""
        return self.charges(inclusion.float()).div_(-float(self.size(inclusion)))

    def total(self, weights: Tensor) -> float:
        """Sum w_ij m_i m_j over the pairs under weights m (n,)."""
        both = weights[self.pairs.first].double() * weights[self.pairs.second].double()
        return float(both @ self.weights.double())

    def worth(self, mask: Tensor) -> Tensor:
        """Compute minus the weight of each document's selected partners, over K: (n,) float32."""
        return self.gradient(mask)

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

        With a budget of tokens, D is divided by the largest mass of a full selection: charges only fall by that.
        """
        largest = budget if self.knapsack is None else self.knapsack.masses_of_full[1]
        return NearDuplicateTangent(self, inclusion, weight / largest)

    @property
    def cliques(self) -> Cliques:
        """The pairs as a sum of weighted cliques."""
        if self._cliques is None:
            self._cliques = cover_with_cliques(self.n, self.pairs, self.weights)
        return self._cliques

    def swap_model(self, mask: Tensor, weight: float) -> SwapModel:
        """Describe what swaps change in weight * D, for a mask (n,)."""
        charge = weight / float(self.size(mask))

        def cross(pool: Tensor) -> Tensor:
            inside = self.restrict(pool)
            matrix = torch.zeros((len(pool), len(pool)), device=pool.device)
            matrix[inside.pairs.first, inside.pairs.second] = inside.weights * charge
            return matrix + matrix.T

        return SwapModel(weight * self.worth(mask), cross)

    def charged(self, worth: Tensor, charge: float, costs: Tensor | None = None) -> Tensor:
        """Charge every document for the partners that rank above it: worth (n,) float32 -> (n,) float32.

        Documents are taken in the order of what they are worth after all charges so far, with costs (n,) per cost, and
        each then charges its partners with charge * w_ij. The K largest results are therefore the greedy selection of
        K documents.
        """
        if not len(self.documents):
            return worth
        values = worth[self.documents].double().cpu().numpy()
        charges, partners = self._weight.double().cpu().numpy() * charge, self._partner.cpu().numpy()
        cost = np.ones_like(values) if costs is None else costs[self.documents].cpu().numpy()
        owners = np.repeat(np.arange(len(values)), self._lengths.cpu().numpy())
        charged = _charged(values / cost, owners, partners, charges / cost[owners]) * cost
        worth = worth.clone()
        worth[self.documents] = torch.from_numpy(charged).to(worth)
        return worth

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

    def charges(self, values: Tensor) -> Tensor:
        """Sum w_ij values_j over the partners of each document, (n,) -> (n,) float32; deterministic on any device."""
        charges = torch.zeros(self.n, device=values.device)
        if len(self.documents):
            terms = values[self.documents][self._partner] * self._weight
            charges[self.documents] = torch.segment_reduce(terms, "sum", lengths=self._lengths, initial=0.0)
        return charges


def weights_of(pairs: Pairs, threshold: float, masses: Tensor | None = None) -> Tensor:
    """Compute the weights of pairs of documents that are at least a threshold similar, (e,) float32."""
    over = (pairs.cosine - threshold) / max(1 - threshold, 1e-6)
    weights = (LEAST_WEIGHT + over).clamp_(max=1.0)
    return weights if masses is None else weights * torch.minimum(masses[pairs.first], masses[pairs.second])


def _charged(
    values: NDArray[np.float64],  # (a,)
    documents: NDArray[np.int64],  # (2e,), the document of every pair, once on either side
    partners: NDArray[np.int64],  # (2e,)
    charges: NDArray[np.float64],  # (2e,), of the document by its partner
) -> NDArray[np.float64]:
    """Take all documents at once that rank above their remaining partners: only those could still charge them."""
    values = values.copy()
    while len(documents):
        own, other = values[documents], values[partners]
        below = (other > own) | ((other == own) & (partners < documents))
        taken = np.ones(len(values), dtype=bool)
        taken[documents[below]] = False
        paid = taken[partners]
        values -= np.bincount(documents[paid], charges[paid], minlength=len(values))
        rest = ~(paid | taken[documents])
        documents, partners, charges = documents[rest], partners[rest], charges[rest]
    return values


class NearDuplicateGains:
    """The gains of the weighted term: minus the charges of the partners selected so far."""

    def __init__(self, metric: NearDuplicates, charge: float) -> None:
        self.metric, self.charge = metric, charge
        self._gains = torch.zeros(metric.n, device=metric.weights.device)

    def gains(self) -> Tensor:
        """Return every document's gain, (n,) float32."""
        return self._gains

    def restart(self, mask: Tensor) -> None:
        """Begin with a selection, mask (n,) bool."""
        self._gains = self.metric.charges(mask.float()) * -self.charge

    def among(self, index: Tensor) -> "NearDuplicateGains":
        """Return the gains of documents (b,) alone, from the present selection on."""
        gains = NearDuplicateGains(self.metric.restrict(index), self.charge)
        gains._gains = self._gains[index]
        return gains

    def add(self, document: int) -> None:
        """Add a document."""
        partners, weights = self.metric.partners(document)
        self._gains[partners] -= self.charge * weights


class NearDuplicateTangent:
    """A linear function that is never below the weighted term, from one price per clique.

    A clique of weight w with s selected members holds s (s - 1) / 2 pairs, and for any price p >= 0

        s (s - 1) / 2 >= p s - c(p),        c(p) = max over whole s of p s - s (s - 1) / 2,

    so that each member costs p w, and the constant c(p) w is given back.
    """

    effort = Effort(120, 5e-5, 0.3, 0.995)
    of_shares: bool | None = False  # it holds for every mask within a budget of tokens

    def __init__(self, metric: NearDuplicates, inclusion: Tensor, charge: float) -> None:
        self.cliques, self.charge = metric.cliques, charge
        self.price = (self.cliques.sums(inclusion) - 0.5).clamp_(min=0)

    def evaluate(self) -> tuple[float, Tensor]:
        """Return the height and the slope of every document, (n,) float64."""
        weights = self.cliques.weights * self.charge
        size = self.price.floor() + 1  # the whole s of the maximum
        height = float((weights * (self.price * size - size * (size - 1) / 2)).sum())
        return height, -self.cliques.spread(weights * self.price)

    def descend(self, mask: Tensor, fall: float) -> None:
        """Move the prices, each by its gradient per weight: long documents would otherwise hold back all others."""
        rest = self.price.floor() + 1 - self.cliques.sums(mask)
        rest[(self.price <= 0) & (rest > 0)] = 0
        fallen = self.charge * float((self.cliques.weights * rest.square()).sum())
        if fallen > 0:
            self.price = (self.price - rest * (fall / fallen)).clamp_(min=0)
