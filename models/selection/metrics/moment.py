"""Share the code of metrics that are a concave function of one small moment of the selection."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor

from fineweb_mask.models.selection.metrics.base import BuiltInMetric, Weighed, metric_class
from fineweb_mask.models.selection.rows import Rows, Standard
from fineweb_mask.models.settings.selection import SelectionSettings


class MomentMetric(Weighed, BuiltInMetric):
    """A metric D = F(M), concave in a moment M = sum_i m_i phi_i of d or d x d numbers: `SupportsMoment`.

    Annealing maximises F at the moment of the inclusion probabilities, and F's tangents bound D. The size of the
    selection, the budget, counts as a constant. With masses, phi_i holds that of document i, and D is a mean by mass.
    """

    sweep_effort = 0.5  # the proof costs more than the solve

    rows: Rows
    credit: Tensor | None = None  # (n,) float32, with masses: D = F(M) + sum of credits / mass^2

    @abstractmethod
    def __init__(self, rows: Rows, masses: Tensor | None = None) -> None: ...

    @classmethod
    def for_block(
        cls,
        rows: Rows,
        settings: SelectionSettings,  # noqa: ARG003 - of the base
        budget: float,  # noqa: ARG003
        masses: Tensor | None = None,
    ) -> Self:
        """Make the metric with masses (n,) for a budget of tokens."""
        return cls(rows, masses)

    @classmethod
    def for_part(cls, rows: Rows, standard: Standard, masses: Tensor | None = None) -> Self:  # noqa: ARG003
        """Make the metric of a part of a corpus, with the mean and deviation of the corpus."""
        return cls(rows, masses)

    @abstractmethod
    def moment(self, weights: Tensor) -> Tensor:
        """Sum the documents' feature maps under weights or over a mask, (n,): float64."""

    @abstractmethod
    def of_moment(self, moment: Tensor, budget: float) -> Tensor:
        """Compute F for a selection of `budget` documents: a float64 scalar, with masses less the metric's credit."""

    @abstractmethod
    def gradient_at(self, moment: Tensor, budget: float, weight: float = 1.0) -> Tensor:
        """Differentiate weight * F with respect to the documents' probabilities: (n,) float32."""

    @abstractmethod
    def along(self, moment: Tensor, way: Tensor, budget: float) -> Callable[[float], float]:
        """Return the derivative of F(moment + share * way) with respect to the share, as a function of it."""

    @abstractmethod
    def height(self, moment: Tensor, budget: float) -> float:
        """Compute the constant h of the tangent at a moment: D(m) <= h + gradient_at(moment) . m."""

    def gradient(self, inclusion: Tensor) -> Tensor:
        """Differentiate F at the moment of the inclusion probabilities, (n,): (n,) float32."""
        return self.gradient_at(self.moment(inclusion), float(self.size(inclusion)))

    def directions(self, count: int, generator: torch.Generator) -> Tensor | None:  # noqa: ARG002 - for subclasses
        """Compute the principal directions that an approximation in `count` keeps, (d, count - 1), or None for all."""
        return None

    def in_directions(self, directions: Tensor, signs: Tensor) -> Self:  # noqa: ARG002 - for subclasses
        """Approximate F by the rows' parts in orthonormal directions (d, r), where that is faster.

        `signs` (n,) are 1 or -1, at random.
        """
        return self


def moment_metric_class(name: str) -> type[MomentMetric]:
    """Import the class of a metric in `METRICS` that is known to be one of a moment."""
    found = metric_class(name)
    if not issubclass(found, MomentMetric):
        raise TypeError(f"{name} is no metric of a moment")
    return found
