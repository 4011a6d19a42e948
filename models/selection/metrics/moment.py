"""Share the code of metrics that are a concave function of one small moment of the selection."""

from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from fineweb_mask.models.selection.metrics.base import EFFORT, BuiltInMetric, Effort, Tangent, Weighed
from fineweb_mask.models.selection.rows import Rows
from fineweb_mask.models.settings.selection import SelectionSettings


class SwapModel(NamedTuple):
    """How a weighted metric changes when selected documents are swapped for others."""

    worth: Tensor  # (n,) float32, the gain from adding each document, or the loss from dropping it
    cross: Callable[[Tensor], Tensor]  # documents (p,) -> (p, p), how much each reduces the worth of the others


class MomentMetric(Weighed, BuiltInMetric):
    """A metric D = F(M), concave in a moment M = sum_i m_i phi_i of d or d x d numbers.

    Annealing maximises F at the moment of the inclusion probabilities, and F's tangents bound D. The size of the
    selection, the budget, counts as a constant. With masses, phi_i holds that of document i, and D is a mean by mass.
    """

    linear_in_v: ClassVar[bool] = False  # F is linear in v = ||M||^2: Newton's method solves the annealing
    swap_pool: ClassVar[int] = 4096  # documents among which one round swaps
    swaps_as_promised: ClassVar[bool] = False  # the objective gains at least what the swap model says
    sweep_effort = 0.5  # the proof costs more than the solve
    effort: ClassVar[Effort] = EFFORT  # of the certificate

    rows: Rows

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

    @abstractmethod
    def tangent(self, inclusion: Tensor, budget: float, weight: float) -> Tangent:
        """Return the tangent of weight * D at the moment of the inclusion probabilities (n,)."""

    @abstractmethod
    def swap_model(self, mask: Tensor, weight: float) -> SwapModel:
        """Describe what swaps change in weight * D, for a mask (n,)."""

    def gradient(self, inclusion: Tensor) -> Tensor:
        """Differentiate F at the moment of the inclusion probabilities, (n,): (n,) float32."""
        return self.gradient_at(self.moment(inclusion), float(self.size(inclusion)))

    def reduced(self, n_directions: int, generator: torch.Generator) -> Self:  # noqa: ARG002 - for subclasses
        """Return an approximation in fewer directions for the annealing, where there is a faster one."""
        return self
