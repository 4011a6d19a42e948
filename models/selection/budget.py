"""Say what may be selected: what each document costs, what all may cost together, and which ones may be taken at all.

A budget counts documents, which cost 1 each, or tokens. All means of the objective are over the budget: a document's
*share* is its cost divided by the limit. A selection is *full* if no document left out fits into the room that remains.
Every full selection uses at least `least`, so that the relaxation in which documents may be taken in part is maximised
by a sort (the fractional knapsack, Dantzig 1957).
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

EXCESS = 1e-10  # share of a budget by which probabilities may miss it


@dataclass(frozen=True, eq=False)
class Budget:
    """What may be selected of n documents.

    >>> budget = Budget.of(torch.tensor([5, 3, 4]), limit=8)
    >>> budget.fill(torch.tensor([0.3, 0.9, 0.6])).tolist()
    [False, True, True]
    """

    costs: Tensor  # (n,) int64, each at least 1
    limit: int  # what all that is selected may cost together
    allowed: Tensor  # (n,) bool

    @classmethod
    def of(cls, costs: Tensor, limit: int, allowed: Tensor | None = None) -> Self:
        """Make the budget; the limit is at most what all allowed documents cost."""
        allowed = torch.ones_like(costs, dtype=torch.bool) if allowed is None else allowed
        return cls(costs, min(limit, int(costs[allowed].sum())), allowed)

    @property
    def n(self) -> int:
        """Number of documents."""
        return len(self.costs)

    @cached_property
    def counts_documents(self) -> bool:
        """Whether every document costs 1."""
        return bool((self.costs == 1).all())

    @cached_property
    def shares(self) -> Tensor:
        """What each document costs as a share of the limit, (n,) float32."""
        return (self.costs.double() / self.limit).float()

    @cached_property
    def size(self) -> float:
        """Documents in a random selection."""
        return self.limit / float(self.costs.double().mean())

    @cached_property
    def even(self) -> Tensor:
        """The same probability for every allowed document, (n,) float32."""
        return self.probabilities(torch.zeros(self.n, device=self.costs.device), 1.0)

    @cached_property
    def least(self) -> int:
        """What every full selection uses, at least.

        If the j-th cheapest document is the cheapest one left out, all cheaper ones are in: the room is less than its
        cost, and at most the limit without those.
        """
        costs = self.costs[self.allowed].sort().values
        room = self.limit - (costs.cumsum(0) - costs)
        if not len(costs) or int(room[-1]) >= int(costs[-1]):
            return self.limit  # everything fits
        return self.limit - int(torch.minimum(costs - 1, room)[room >= 0].max())

    def among(self, index: Tensor, limit: int) -> Self:
        """Return the budget of some documents, index (b,), with another limit."""
        return type(self).of(self.costs[index], limit, self.allowed[index])

    def fill(self, priority: Tensor, start: Tensor | None = None) -> Tensor:
        """Take documents from the highest priority (n,) on, ties by position, each if it still fits: (n,) bool.

        Those of `start` (n,) bool, which keep within the limit, come before all others.
        """
        mask = torch.zeros_like(self.allowed) if start is None else start.clone()
        left = self.limit - int(self.costs[mask].sum())
        order = priority.sort(descending=True, stable=True).indices
        order = order[(self.allowed & ~mask)[order]]
        while left and len(order := order[self.costs[order] <= left]):
            fits = order[self.costs[order].cumsum(0) <= left]
            mask[fits] = True
            left -= int(self.costs[fits].sum())
            order = order[len(fits) :]
        return mask

    def worth(self, gains: Tensor) -> Tensor:
        """Return the order in which documents fill the budget, by their marginal gains (n,): the gain for its cost."""
        return gains if self.counts_documents else gains / self.costs.to(gains.dtype)

    def deviation(self, worth: Tensor) -> float:
        """Compute the standard deviation of a worth (n,) over all that the documents cost."""
        share = self.costs.double() / self.costs.sum()
        return float((share @ (worth.double() - share @ worth.double()).square()).sqrt())

    def probabilities(self, worth: Tensor, temperature: float) -> Tensor:
        """Solve sum_i cost_i sigmoid((worth_i - tau) / T) = limit over the allowed documents for tau: (n,) float32.

        By Newton's method, and by bisection where a step would leave the interval that holds tau.
        """
        costs = self.costs.double() * self.allowed
        scaled = (worth.double() - worth.mean(dtype=torch.float64)) / temperature
        low, high = float(scaled.min()) - 40, float(scaled.max()) + 40  # sigmoid(-40) is below float64 rounding
        tau = (low + high) / 2
        for _ in range(60):
            pi = torch.sigmoid(scaled - tau)
            weighed = pi * costs
            excess = float(weighed.sum()) - self.limit
            low, high = (tau, high) if excess > 0 else (low, tau)
            if abs(excess) <= EXCESS * self.limit or high - low <= EXCESS:
                break
            slope = float(weighed.sum() - weighed @ pi)
            tau = tau + excess / slope if slope > 0 else low
            if not low < tau < high:
                tau = (low + high) / 2
        return (torch.sigmoid(scaled - tau) * self.allowed).float()

    def best(self, gains: Tensor) -> tuple[float, Tensor]:
        """Maximise gains . m over every m in [0, 1]^n of allowed documents that uses `least` to `limit`.

        `gains` are (n,) float64. Return the maximum, and where it is reached, (n,) float64.
        """
        worth = torch.where(self.allowed, gains / self.costs, -torch.inf)
        order = worth.sort(descending=True, stable=True).indices
        order = order[self.allowed[order]]
        costs, gained = self.costs[order], gains[order]
        room = torch.where(gained > 0, self.limit, self.least) - (costs.cumsum(0) - costs)
        taken = torch.zeros_like(gains)
        taken[order] = (room / costs).clamp(0, 1).to(gains)
        return float(taken @ gains), taken
