"""What a diversity metric offers: the least that a user's own has, and what every built-in one adds.

A metric is a class with `value(masks)`; one that also has `gradient(inclusion)` can be solved in closed form.
Built-in ones add what the certificate needs: a concave function that equals the metric on every mask.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor

    from fineweb_mask.models.selection.rows import Rows


@runtime_checkable
class Metric(Protocol):
    """What every diversity metric offers, a user's own included; larger is more diverse."""

    def value(self, masks: Tensor) -> Tensor:
        """Evaluate a group of masks, (G, n) bool: (G,)."""
        ...


@runtime_checkable
class DifferentiableMetric(Metric, Protocol):
    """A metric that can be solved in closed form."""

    def gradient(self, inclusion: Tensor) -> Tensor:
        """Differentiate the expected value by the inclusion probabilities, (n,): (n,)."""
        ...


class BuiltInMetric(ABC):
    """A metric with a gradient, a concave relaxation, its value on a random subset, and a view of a batch."""

    name: str

    @abstractmethod
    def __init__(self, rows: Rows) -> None: ...

    @abstractmethod
    def value(self, masks: Tensor) -> Tensor:
        """Evaluate a group of masks, (G, n) bool: (G,) float64."""

    @abstractmethod
    def gradient(self, inclusion: Tensor) -> Tensor:
        """Differentiate the expected value under independent inclusion (n,): (n,) float32.

        The size of the selection, sum of `inclusion`, counts as a constant.
        """

    @abstractmethod
    def relaxed(self, inclusion: Tensor) -> tuple[float, Tensor]:
        """Give a concave h >= D (equal on masks of the same size) and a supergradient (n,) float64."""

    @abstractmethod
    def worth(self, mask: Tensor) -> Tensor:
        """Say what each document is worth to a selection, (n,) bool: (n,) float32.

        For an unselected document what adding it alone would gain, for a selected one what dropping it alone
        would lose, with the size of the selection counted as a constant.
        """

    @abstractmethod
    def random_value(self, budget: int) -> float:
        """Give the value expected of a uniform random subset of `budget` documents."""

    @abstractmethod
    def restrict(self, index: Tensor) -> BuiltInMetric:
        """Give the same metric over a batch of documents, index (b,)."""
