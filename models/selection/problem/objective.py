"""Define the objective J(m), a weighted sum of mean quality, diversity metrics and the penalty for near-duplicates."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, replace

import torch
from torch import Tensor

from fineweb_mask.models.selection.metrics.base import (
    Metric,
    SupportsFocus,
    SupportsGradient,
    SupportsMarginalGains,
    SupportsRestrict,
)
from fineweb_mask.models.selection.problem.token_budget import Knapsack, probabilities, top

CONTENDERS, FEWEST_CONTENDERS = 2, 4096  # documents that are looked at for each that is selected, and in all
FOCUS_FROM = 4  # documents for each that is selected: with fewer, looking at all costs little more


@dataclass(eq=False)
class Objective:
    """J = linear . m + sum of weights * metrics + constant, for selections of one size.

    With a knapsack, for the full selections by its tokens: Q is the mean quality by mass, and the methods that read
    denominators take those of `knapsack.size`. `value` is exact for every mask.
    """

    quality: Tensor  # (n,) float32
    budget: int  # documents to select, K; with a knapsack about as many
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    _: KW_ONLY
    linear_weight: float = 0.0  # by which the mean quality Q enters
    weights: Mapping[str, float] = field(default_factory=dict)  # by which each metric's raw value enters
    constant: float = 0.0  # added to J, so that 0 and 1 are where `normalize` puts them
    knapsack: Knapsack | None = None

    @property
    def n(self) -> int:
        """Documents in the block."""
        return len(self.quality)

    @property
    def active(self) -> dict[str, Metric]:
        """The metrics of nonzero weight."""
        return {name: metric for name, metric in self.metrics.items() if self.weights[name]}

    @property
    def size(self) -> float:
        """The K of all denominators: documents, or mass by a knapsack."""
        return self.budget if self.knapsack is None else self.knapsack.size

    @property
    def share(self) -> float:
        """Probability with which each document is in a random selection."""
        return self.budget / self.n if self.knapsack is None else self.knapsack.share

    @property
    def linear(self) -> Tensor:
        """Each document's contribution to J through its quality and what else is linear, (n,) float32."""
        if self.knapsack is None:
            return self.quality * (self.linear_weight / self.budget)
        linear = self.knapsack.masses * (self.quality * (self.linear_weight / self.size))
        credit = self.credit
        return linear if credit is None else linear + credit * self.size**-2

    @property
    def credit(self) -> Tensor | None:
        """What of J is linear in m and divided by the squared mass (the metrics' weighted credits), (n,) float32."""
        total = None
        for name, metric in self.active.items():
            credit: Tensor | None = getattr(metric, "credit", None)
            if credit is not None:
                total = self.weights[name] * credit + (0.0 if total is None else total)
        return total

    def top(self, priority: Tensor) -> Tensor:
        """Select documents of the highest priority, (n,), ties by position, until the budget is full: (n,) bool."""
        return top(priority, self.budget) if self.knapsack is None else self.knapsack.fill(priority)

    def probabilities(self, gains: Tensor, temperature: float) -> Tensor:
        """Solve for the inclusion probabilities that fill the budget, for marginal gains (n,): (n,) float32.

        They are sigmoid((gains_i - tau) / T); with a knapsack, of the gain per token.
        """
        if self.knapsack is not None:
            return self.knapsack.probabilities(gains, temperature)
        return probabilities(gains, temperature, self.budget)

    def deviation(self, gains: Tensor) -> float:
        """Compute the deviation of marginal gains (n,) over the documents; with a knapsack, per token."""
        return float(gains.double().std(correction=0)) if self.knapsack is None else self.knapsack.deviation(gains)

    def priority(self, gains: Tensor) -> Tensor:
        """Return the order in which documents fill the budget, by their gains (n,): the gain, or that per token."""
        return gains if self.knapsack is None else gains / self.knapsack.costs.to(gains.dtype)

    def is_filled_by(self, mask: Tensor) -> bool:
        """Return whether a mask (n,) bool holds K documents, or at least as many tokens as any full selection."""
        if self.knapsack is None:
            return int(mask.sum()) == self.budget
        return self.knapsack.least <= int(self.knapsack.tokens[mask].sum()) <= self.knapsack.limit

    def mean_quality(self, mask: Tensor) -> float:
        """Compute Q of one mask, (n,) bool."""
        if self.knapsack is None:
            return float(self.quality[mask].mean(dtype=torch.float64))
        masses = self.knapsack.masses[mask].double()
        return float(masses @ self.quality[mask].double() / masses.sum())

    def restrict(self, index: Tensor, budget: int) -> "Objective":
        """Return the objective for selections of `budget` documents among some, index (b,)."""
        metrics = {
            name: metric.restrict(index) if isinstance(metric, SupportsRestrict) else _Widened(metric, index, self.n)
            for name, metric in self.active.items()
        }
        knapsack = None if self.knapsack is None else self.knapsack.restrict(index)
        return replace(self, quality=self.quality[index], budget=budget, metrics=metrics, knapsack=knapsack)

    @property
    def may_focus(self) -> bool:
        """Whether it pays to look at a part of the documents for most of the time."""
        focusing = any(isinstance(metric, SupportsFocus) for metric in self.active.values())
        return focusing and self.n >= FOCUS_FROM * max(self.budget, FEWEST_CONTENDERS // CONTENDERS)

    def contenders(self, gains: Tensor, mask: Tensor) -> Tensor:
        """Return the documents of a mask (n,) bool and as many others, those of the highest gains (n,): their index."""
        order = self.priority(gains).masked_fill(mask, torch.inf)
        count = max(CONTENDERS * self.budget, FEWEST_CONTENDERS)
        return order.topk(min(count, self.n)).indices.sort().values

    def focused(self, index: Tensor) -> "Objective":
        """Return the same J for selections from index (b,): other documents gain less than all of these."""
        metrics = {
            name: metric.focused(index) if isinstance(metric, SupportsFocus) else metric
            for name, metric in self.metrics.items()
        }
        return replace(self, metrics=metrics)

    def value(self, masks: Tensor) -> Tensor:
        """Evaluate a group of masks, (G, n) bool: (G,) float64."""
        if self.knapsack is not None:
            masses = self.knapsack.masses.double()
            counts, quality = masks.double() @ masses, masks.double() @ (masses * self.quality.double())
        else:
            counts = masks.sum(1, dtype=torch.float64)
            if len(masks) == 1:
                quality = self.quality[masks[0]].sum(dtype=torch.float64)[None]
            else:
                quality = (masks.float() @ self.quality).double()
        total = quality / counts * self.linear_weight + self.constant
        for name, metric in self.active.items():
            total = total + metric.value(masks).to(total) * self.weights[name]
        return total

    def value_of(self, mask: Tensor) -> float:
        """Evaluate one mask, (n,) bool."""
        return float(self.value(mask[None])[0])

    def size_of(self, mask: Tensor) -> float:
        """Sum the absolute values of the terms of one mask, (n,) bool: what rounding errors of J are relative to."""
        sizes = [self.constant, self.linear_weight * float(self.quality[mask].double().abs().mean())]
        sizes += [self.weights[name] * float(metric.value(mask[None])[0]) for name, metric in self.active.items()]
        return sum(map(abs, sizes))

    def marginal_gains(self, mask: Tensor) -> Tensor:
        """Compute each document's gain from adding it, or loss from dropping it, for a mask (n,) bool: (n,) float32."""
        gains = self.linear.clone()
        for name, metric in self.active.items():
            if isinstance(metric, SupportsMarginalGains):
                gains += self.weights[name] * metric.marginal_gains(mask)
            elif isinstance(metric, SupportsGradient):
                gains += self.weights[name] * metric.gradient(mask.float()).float()
        return gains


class _Widened:
    """A metric without `restrict`, evaluated among all n documents on masks over a batch of them, index (b,)."""

    def __init__(self, metric: Metric, index: Tensor, n: int) -> None:
        self._metric, self._index, self._n = metric, index, n

    def value(self, masks: Tensor) -> Tensor:
        """Evaluate masks over the batch, (G, b) bool: (G,)."""
        whole = torch.zeros((len(masks), self._n), dtype=torch.bool, device=masks.device)
        whole[:, self._index] = masks
        return self._metric.value(whole)
