"""Define the objective J(m), a weighted sum of mean quality and diversity metrics, and the scales of its terms (ours).

`normalize: range` maps each term so that 0 is the value of a uniform random subset and 1 the best that the term alone
can reach: lamb = 0.5 then means the same on every corpus. Both ends of quality are exact. The random end of a metric is
its `random_value`, its best end is what the solver finds with lamb = 0 (`BlockSolver.ranges`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import torch
from torch import Tensor

from fineweb_mask.models.selection.budget import Budget
from fineweb_mask.models.selection.metrics.base import Metric

NO_RANGE = 1e-6  # a range below this share of the term's size is float32 rounding: the term is constant
READABLE = 0.25  # temperature of the inclusion, in standard deviations of the marginal gains


class Term(NamedTuple):
    """The scale of one term of the objective: (raw - base) * factor."""

    random: float  # raw value expected of a uniform random subset
    base: float = 0.0
    factor: float = 1.0

    @classmethod
    def between(cls, low: float, high: float) -> Self:
        """Map low to 0 and high to 1; a term that does not vary is 0 everywhere."""
        varies = high - low > NO_RANGE * max(abs(low), abs(high))
        return cls(low, low, 1 / (high - low) if varies else 0.0)

    def scaled(self, raw: float) -> float:
        """Return the term as it enters J."""
        return (raw - self.base) * self.factor


Ranges = Mapping[str, Term]
"""The scales of the quality and of every metric, by name, at one budget: the same for every solver and every `lamb`."""


@dataclass(frozen=True, eq=False)
class Objective:
    """J = sum of weights * metrics + constant, for the selections within a budget; the mean quality is one of them."""

    budget: Budget
    metrics: Mapping[str, Metric]
    weights: Mapping[str, float]  # by which each one's raw value enters
    constant: float = 0.0  # added to J, so that 0 and 1 are where `normalize` puts them

    @property
    def active(self) -> dict[str, Metric]:
        """The metrics of nonzero weight."""
        return {name: metric for name, metric in self.metrics.items() if self.weights[name]}

    def value(self, masks: Tensor) -> Tensor:
        """Evaluate a group of masks, (G, n) bool: (G,) float64."""
        total = torch.full((len(masks),), self.constant, dtype=torch.float64, device=masks.device)
        for name, metric in self.active.items():
            total += metric.value(masks).to(total) * self.weights[name]
        return total

    def value_of(self, mask: Tensor) -> float:
        """Evaluate one mask, (n,) bool."""
        return float(self.value(mask[None])[0])

    def gradient(self, inclusion: Tensor) -> Tensor:
        """Return what documents are searched by at inclusion probabilities (n,): (n,) float32."""
        total = torch.zeros(len(inclusion), device=inclusion.device)
        for name, metric in self.active.items():
            total += metric.gradient(inclusion) * self.weights[name]
        return total

    def gains(self, mask: Tensor) -> Tensor:
        """Return what adding each document brings, or dropping it costs, for a mask (n,) bool: (n,) float32."""
        total = torch.zeros(len(mask), device=mask.device)
        for name, metric in self.active.items():
            total += metric.gains(mask).float() * self.weights[name]
        return total

    def inclusion(self, mask: Tensor) -> Tensor:
        """Return probabilities that tell each document's marginal gain to a selection, (n,) bool: (n,) float32.

        Where all gain the same, they are the selection.
        """
        worth = self.budget.worth(self.gains(mask))
        spread = self.budget.deviation(worth)
        return self.budget.probabilities(worth, READABLE * spread) if spread > 0 else mask.float()

    def among(self, index: Tensor, limit: int) -> "Objective":
        """Return the objective for selections of some documents, index (b,), within another limit."""
        budget = self.budget.among(index, limit)
        metrics = {name: metric.among(index, budget, self.budget) for name, metric in self.active.items()}
        return replace(self, budget=budget, metrics=metrics)
