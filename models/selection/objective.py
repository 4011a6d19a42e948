"""What a selection maximises: J(m) = lamb * Q(m) + (1 - lamb) * D(m), where D weighs diversity metrics.

`METRICS` names the metrics; a new one is a class in `models/selection/metrics/` and an entry here.
Normalising their terms by range is ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fineweb_mask.models.selection.metrics.base import BuiltInMetric, DifferentiableMetric, Metric
from fineweb_mask.models.selection.metrics.disf import Disf
from fineweb_mask.models.selection.metrics.facility import Facility
from fineweb_mask.models.selection.metrics.pairwise import Pairwise

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

METRICS: dict[str, type[BuiltInMetric]] = {kind.name: kind for kind in (Pairwise, Disf, Facility)}


class Objective:
    """J = linear . m + sum of weights * metrics + constant, for selections of one size.

    Parameters
    ----------
    quality
        (n,) float32.
    budget
        Documents to select, K.
    metrics
        Metrics by name.
    linear_weight
        Weight of the mean quality Q.
    weights
        Weight of each metric's raw value.
    constant
        What `normalize` takes off.
    """

    def __init__(
        self,
        quality: Tensor,  # (n,)
        budget: int,
        metrics: Mapping[str, Metric],
        *,
        linear_weight: float,
        weights: Mapping[str, float],
        constant: float = 0.0,
    ) -> None:
        self.quality, self.budget, self.metrics = quality, budget, dict(metrics)
        self.linear_weight, self.weights, self.constant = linear_weight, dict(weights), constant

    @property
    def n(self) -> int:
        """Documents in the block."""
        return len(self.quality)

    @property
    def active(self) -> dict[str, Metric]:
        """The metrics that count."""
        return {name: metric for name, metric in self.metrics.items() if self.weights[name]}

    @property
    def linear(self) -> Tensor:
        """What selecting a document adds through its quality: (n,) float32."""
        return self.quality * (self.linear_weight / self.budget)

    def restrict(self, index: Tensor) -> Objective:
        """Give the same objective for selections among some documents, index (b,); built-in metrics only."""
        metrics = {
            name: metric.restrict(index)
            for name, metric in self.metrics.items()
            if self.weights[name] and isinstance(metric, BuiltInMetric)
        }
        return Objective(
            self.quality[index],
            self.budget,
            metrics,
            linear_weight=self.linear_weight,
            weights=self.weights,
            constant=self.constant,
        )

    def value(self, masks: Tensor) -> Tensor:
        """Evaluate a group of masks, (G, n) bool: (G,) float64."""
        counts = masks.sum(1, dtype=torch.float64)
        if len(masks) == 1:
            quality = self.quality[masks[0]].sum(dtype=torch.float64)[None]
        else:
            quality = (masks.float() @ self.quality).double()
        total = quality / counts * self.linear_weight + self.constant
        for name, metric in self.metrics.items():
            if self.weights[name]:
                total = total + metric.value(masks).to(total) * self.weights[name]
        return total

    def value_of(self, mask: Tensor) -> float:
        """Evaluate one mask, (n,) bool."""
        return float(self.value(mask[None])[0])

    def worth(self, mask: Tensor) -> Tensor:
        """Say what adding an unselected and what dropping a selected document is worth: (n,) float32."""
        worth = self.linear.clone()
        for name, metric in self.metrics.items():
            if not self.weights[name]:
                continue
            if isinstance(metric, BuiltInMetric):
                worth += self.weights[name] * metric.worth(mask)
            elif isinstance(metric, DifferentiableMetric):
                worth += self.weights[name] * metric.gradient(mask.float()).float()
        return worth
