"""Define the objective J(m), a weighted sum of mean quality, diversity metrics and the charge for near-duplicates."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace

import torch
from torch import Tensor

from fineweb_mask.models.selection.metrics.base import Metric, SupportsGradient, SupportsRestrict, SupportsWorth


@dataclass(eq=False)
class Objective:
    """J = linear . m + sum of weights * metrics + constant, for selections of one size."""

    quality: Tensor  # (n,) float32
    budget: int  # documents to select, K
    metrics: Mapping[str, Metric]
    _: KW_ONLY
    linear_weight: float  # of the mean quality Q
    weights: Mapping[str, float]  # of each metric's raw value
    constant: float = 0.0  # added to J, so that 0 and 1 are where `normalize` puts them

    @property
    def n(self) -> int:
        """Documents in the block."""
        return len(self.quality)

    @property
    def active(self) -> dict[str, Metric]:
        """The metrics of nonzero weight."""
        return {name: metric for name, metric in self.metrics.items() if self.weights[name]}

    @property
    def linear(self) -> Tensor:
        """Each document's contribution to J through its quality, (n,) float32."""
        return self.quality * (self.linear_weight / self.budget)

    def restrict(self, index: Tensor, budget: int) -> "Objective":
        """Return the objective for selections of `budget` documents among some, index (b,)."""
        metrics = {
            name: metric.restrict(index) if isinstance(metric, SupportsRestrict) else _Widened(metric, index, self.n)
            for name, metric in self.active.items()
        }
        return replace(self, quality=self.quality[index], budget=budget, metrics=metrics)

    def value(self, masks: Tensor) -> Tensor:
        """Evaluate a group of masks, (G, n) bool: (G,) float64."""
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

    def worth(self, mask: Tensor) -> Tensor:
        """Compute each document's gain from adding it, or loss from dropping it, for a mask (n,) bool: (n,) float32."""
        worth = self.linear.clone()
        for name, metric in self.active.items():
            if isinstance(metric, SupportsWorth):
                worth += self.weights[name] * metric.worth(mask)
            elif isinstance(metric, SupportsGradient):
                worth += self.weights[name] * metric.gradient(mask.float()).float()
        return worth


class _Widened:
    """A metric without `restrict`, evaluated among all n documents on masks over a batch of them, index (b,)."""

    def __init__(self, metric: Metric, index: Tensor, n: int) -> None:
        self._metric, self._index, self._n = metric, index, n

    def value(self, masks: Tensor) -> Tensor:
        """Evaluate masks over the batch, (G, b) bool: (G,)."""
        whole = torch.zeros((len(masks), self._n), dtype=torch.bool, device=masks.device)
        whole[:, self._index] = masks
        return self._metric.value(whole)
