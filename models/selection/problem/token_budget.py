"""Fill a budget of tokens with documents of unequal length, and bound what any such filling can reach (ours).

A selection is *full* if it keeps within the budget and no document left out fits into the room that remains. Every
full selection uses at least `least` tokens, so all of them lie between `least` and `limit`: the relaxation in which
documents may be taken in part is maximised by a sort (the fractional knapsack, Dantzig 1957).

The objective's means are over tokens: each document has its tokens as its mass. With masses a_i, a term that is a mean
over the selection has a tangent h + sum_i N_i m_i / sum_i a_i m_i (its `shares` N), another one h + sum_i W_i m_i
(`gains`).
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

EXCESS = 1e-10  # share of a budget by which probabilities may miss it
RATIO_STEPS = 6  # steps of Dinkelbach's method, which converges superlinearly


def top(scores: Tensor, k: int) -> Tensor:
    """Mark the k largest of (n,), ties by position: (n,) bool."""
    mask = torch.zeros(len(scores), dtype=torch.bool, device=scores.device)
    mask[scores.sort(descending=True, stable=True).indices[:k]] = True
    return mask


def probabilities(gradient: Tensor, temperature: float, budget: float, costs: Tensor | None = None) -> Tensor:
    """Solve sum_i cost_i sigmoid((g_i - tau) / T) = budget for tau, costs (n,) or 1 each: (n,) float32.

    By Newton's method, and by bisection where a step would leave the interval that holds tau.
    """
    scaled = (gradient.double() - gradient.mean(dtype=torch.float64)) / temperature
    low, high = float(scaled.min()) - 40, float(scaled.max()) + 40  # sigmoid(-40) is below float64 rounding
    tau = (low + high) / 2
    for _ in range(60):
        pi = torch.sigmoid(scaled - tau)
        weighed = pi if costs is None else pi * costs
        excess = float(weighed.sum()) - budget
        low, high = (tau, high) if excess > 0 else (low, tau)
        if abs(excess) <= EXCESS * budget or high - low <= EXCESS:
            break
        slope = float(weighed.sum() - weighed @ pi)
        tau = tau + excess / slope if slope > 0 else low
        if not low < tau < high:
            tau = (low + high) / 2
    return torch.sigmoid(scaled - tau).float()


@dataclass(frozen=True, eq=False)
class Knapsack:
    """A budget of tokens, and what every document costs, which is also what it weighs.

    Lengths are divided by the block's mean: `size`, the mass of a full selection, is then about the number of documents
    in it, as in a budget of documents.
    """

    tokens: Tensor  # (n,) int64, each at least 1
    limit: int  # tokens
    costs: Tensor  # (n,) float64, tokens over their mean
    size: float  # mass of the whole budget

    @classmethod
    def of(cls, tokens: Tensor, limit: int) -> Self:
        """Make the budget from token counts (n,) int64."""
        costs = tokens.double() / tokens.double().mean()
        return cls(tokens, limit, costs, limit / float(tokens.sum()) * len(tokens))

    @cached_property
    def masses(self) -> Tensor:
        """The costs in float32, (n,), by which metrics weigh documents."""
        return self.costs.float()

    @cached_property
    def mean(self) -> float:
        """Mean tokens of a document of the block, of which costs are multiples."""
        return float(self.tokens[0] / self.costs[0])

    @property
    def share(self) -> float:
        """Share of all tokens that is selected."""
        return self.limit / int(self.tokens.sum())

    @cached_property
    def least(self) -> int:
        """Tokens that every full selection uses, at least.

        If the j-th shortest document is the shortest one left out, all shorter ones are in: the room is less than its
        length, and at most the budget without those.
        """
        lengths = self.tokens.sort().values
        room = self.limit - (lengths.cumsum(0) - lengths)
        if int(room[-1]) >= int(lengths[-1]):
            return int(lengths.sum())  # everything fits
        return self.limit - int(torch.minimum(lengths - 1, room)[room >= 0].max())

    @cached_property
    def masses_of_full(self) -> tuple[float, float]:
        """The least and the largest mass of a full selection."""
        return self.least / self.mean, min(self.limit, int(self.tokens.sum())) / self.mean

    def restrict(self, index: Tensor) -> Self:
        """Return the same budget for some of the documents, index (b,)."""
        return replace(self, tokens=self.tokens[index], costs=self.costs[index])

    def fill(self, priority: Tensor, start: Tensor | None = None) -> Tensor:
        """Take documents from the highest priority (n,) on, each if it still fits: a full selection, (n,) bool.

        Those of `start` (n,) bool, which keep within the budget, come before all others.
        """
        kept = torch.zeros_like(self.tokens, dtype=torch.bool) if start is None else start.clone()
        left = self.limit - int(self.tokens[kept].sum())
        order = priority.sort(descending=True, stable=True).indices
        order = order[~kept[order]]
        while len(order := order[self.tokens[order] <= left]):
            fits = order[self.tokens[order].cumsum(0) <= left]
            kept[fits] = True
            left -= int(self.tokens[fits].sum())
            order = order[len(fits) :]
        return kept

    def probabilities(self, gains: Tensor, temperature: float) -> Tensor:
        """Solve sum_i tokens_i sigmoid((worth_i / cost_i - tau) / T) = limit for tau: (n,) float32."""
        return probabilities(gains / self.costs, temperature, self.limit / self.mean, self.costs)

    def deviation(self, gains: Tensor) -> float:
        """Compute the standard deviation of marginal gains (n,) per token, over all tokens."""
        ratio, share = gains.double() / self.costs, self.costs / len(self.costs)
        return float((share @ (ratio - share @ ratio).square()).clamp(min=0).sqrt())

    def best_mean(self, values: Tensor) -> Tensor:
        """Find a full selection of a high mean value, by mass, of (n,): (n,) bool."""
        masses, mean, best = self.masses.double(), -torch.inf, None
        level = float(masses @ values.double() / masses.sum())
        for _ in range(RATIO_STEPS):
            mask = self.fill((values.double() - level) * masses / self.costs)
            level = float(masses[mask] @ values[mask].double() / masses[mask].sum())
            if best is not None and level <= mean:
                break
            best, mean = mask, level
        assert best is not None  # noqa: S101 - the first step sets it
        return best

    def highest(self, gains: Tensor, shares: Tensor) -> tuple[float, Tensor]:
        """Bound W . m + N . m / (a . m) over every m in [0, 1]^n that uses `least` to `limit` tokens.

        `gains` W and `shares` N are (n,) float64. Return the bound and where it is reached, (n,) float64.
        """
        masses, (low, high) = self.masses.double(), self.masses_of_full
        # a . m is between low and high, so W becomes a share; a mean is highest over the fewest tokens
        shares = shares + torch.where(gains > 0, high * gains, low * gains)
        order = (shares / masses).sort(descending=True, stable=True).indices
        lengths, taken = self.tokens[order], torch.empty_like(shares)
        taken[order] = ((self.least - (lengths.cumsum(0) - lengths)) / lengths).clamp(0, 1).to(shares)
        return float((taken * shares).sum() / (taken * masses).sum()), taken
