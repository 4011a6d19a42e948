"""Define what a diversity metric offers: `value`, from which all else follows but a bound.

Examples
--------
>>> import numpy as np, torch
>>> from fineweb_mask import Metric, SelectionSettings, select
>>> class Variance(Metric):  # of one number per document
...     x = torch.arange(100.0)
...
...     def value(self, masks):  # (G, n) -> (G,)
...         share = masks / masks.sum(1, keepdim=True)
...         return share @ self.x**2 - (share @ self.x) ** 2
>>> settings = SelectionSettings(metrics={}, lamb=0.1)
>>> selection = select(np.eye(100), np.ones(100), settings, own_metrics={"variance": (Variance(), 1.0)})
>>> bool(selection.terms["variance"] > 2 * Variance.x.var())
True
"""

from abc import ABC, abstractmethod
from pkgutil import resolve_name
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fineweb_mask.models.selection.budget import Budget
from fineweb_mask.models.selection.inputs import SelectionInputError
from fineweb_mask.models.settings.selection import METRICS

RANDOM_MASKS = 16  # drawn to estimate a metric on random selections


class Metric(ABC):
    """A diversity metric D of selections of n documents; larger is more diverse."""

    relaxation: ClassVar[int] = 40
    """Steps of the relaxation; of several metrics the fewest count."""

    @abstractmethod
    def value(self, masks: Tensor) -> Tensor:
        """Evaluate a group of masks, (G, n) bool, or float32 of probabilities: (G,)."""

    def gradient(self, inclusion: Tensor) -> Tensor:
        """Return what the documents are searched by at inclusion probabilities (n,): (n,) float32.

        It is the gradient of a function of the probabilities that is D on masks.
        """
        at = inclusion.to(torch.float32, copy=True).requires_grad_()
        try:
            [found] = torch.autograd.grad(self.value(at[None]).sum(), at)
        except (RuntimeError, TypeError, IndexError) as error:
            raise SelectionInputError(
                f"the metric {type(self).__name__} cannot be differentiated: compute its value by torch from masks of "
                f"float32, too, or use solver 'policy_gradient' ({error})"
            ) from error
        return found.float()

    def gains(self, mask: Tensor) -> Tensor:
        """Return what adding each document brings, or dropping it costs, for a mask (n,) bool: (n,) float32."""
        return self.gradient(mask.float())

    def random_value(self, budget: Budget) -> float:
        """Return the value expected of a random selection; here the mean over a few."""
        keys = torch.rand((RANDOM_MASKS, budget.n), generator=torch.Generator().manual_seed(0))
        masks = torch.stack([budget.fill(one) for one in keys.to(budget.costs.device)])
        return float(self.value(masks).double().mean())

    def among(self, index: Tensor, part: Budget, whole: Budget) -> "Metric":  # noqa: ARG002 - of subclasses
        """Return the metric of masks over some documents, index (b,), of `part`, a budget of these."""
        return Among(self, index, whole.n)


class Among(Metric):
    """A metric of n documents for masks over some of them, index (b,), which it evaluates among all."""

    def __init__(self, metric: Metric, index: Tensor, n: int) -> None:
        self._metric, self._index, self._n = metric, index, n

    def value(self, masks: Tensor) -> Tensor:
        """Evaluate masks over the batch, (G, b) bool: (G,)."""
        whole = masks.new_zeros((len(masks), self._n))
        whole[:, self._index] = masks
        return self._metric.value(whole)


class Effort(NamedTuple):
    """How many steps tighten a bound, and how long they are."""

    steps: int
    factor: float  # share of the step that would close the gap if the bound were linear and tight
    slower: float  # a step's factor divided by that of the step before


class Bounded(Metric):
    """A metric with tangents, which bound it from above."""

    effort: ClassVar[Effort] = Effort(120, 1.0, 0.985)
    """How its tangents tighten the bound; of several metrics that of the fewest steps counts."""

    @abstractmethod
    def place(self, inclusion: Tensor) -> Tensor:
        """Return where the tangent at inclusion probabilities (n,) touches, which `tangent` and `pull` take."""

    @abstractmethod
    def tangent(self, place: Tensor) -> tuple[float, Tensor]:
        """Return h and g, (n,) float64, with D(m) <= h + g . m for every mask m within the budget."""

    @abstractmethod
    def pull(self, place: Tensor, taken: Tensor) -> Tensor:
        """Differentiate h + g . m at m, `taken` (n,) float64, with respect to the place: its shape."""

    @abstractmethod
    def moved(self, place: Tensor, step: Tensor, taken: Tensor) -> Tensor:
        """Return the place less a step along its `pull` at `taken`, or less of it: where the tangent holds."""


class Linear(Bounded):
    """A sum over documents, D = g . m: the mean quality."""

    def __init__(self, slopes: Tensor) -> None:
        """Take g, (n,) float32."""
        self.slopes = slopes

    def value(self, masks: Tensor) -> Tensor:
        """Evaluate masks (G, n): (G,) float64."""
        return masks.double() @ self.slopes.double()

    def gradient(self, inclusion: Tensor) -> Tensor:  # noqa: ARG002 - it is the same everywhere
        """Return g."""
        return self.slopes

    def random_value(self, budget: Budget) -> float:
        """Compute the value expected of a random selection."""
        return min(budget.size / budget.n, 1.0) * float(self.slopes.sum(dtype=torch.float64))

    def place(self, inclusion: Tensor) -> Tensor:
        """Return nothing: it is its own tangent."""
        return inclusion[:0]

    def tangent(self, place: Tensor) -> tuple[float, Tensor]:  # noqa: ARG002 - there is one
        """Return 0 and g."""
        return 0.0, self.slopes.double()

    def pull(self, place: Tensor, taken: Tensor) -> Tensor:  # noqa: ARG002 - there is nothing to move
        """Return nothing."""
        return place

    def moved(self, place: Tensor, step: Tensor, taken: Tensor) -> Tensor:  # noqa: ARG002 - there is nothing to move
        """Return nothing."""
        return place

    def among(self, index: Tensor, part: Budget, whole: Budget) -> "Linear":
        """Return the metric of some documents, index (b,): a mean over the budget is one over that of the part."""
        return Linear(self.slopes[index] * (whole.limit / part.limit))


def metric_class(name: str) -> Any:  # noqa: ANN401 - each has its own constructor
    """Import the class of a metric in `METRICS`."""
    return resolve_name(f"fineweb_mask.models.selection.metrics.{METRICS[name].path}")
