"""Define what a diversity metric offers: `value`, and methods that enable solvers and the certificate.

A metric needs `value` only. Every other method enables one thing:

| method | what it enables | without it |
|---|---|---|
| `gradient` | `mean_field` | `mean_field` refuses the metric |
| `gains` | exact gains in swaps and in the reported inclusion | the gradient at the mask |
| `place`, `tangent`, `pull` | the upper bound on the objective | no bound (None) |
| `picks` | `greedy` | `greedy` refuses the metric |
| `among` | cheap batches in `policy_gradient` | every batch is evaluated among all documents |
| `random_value` | an exact lower end of the range | the mean over a few random selections |
| `coarse` | a cheaper relaxation | the metric itself |

Examples
--------
>>> import numpy as np, torch
>>> from fineweb_mask import Metric, SelectionSettings, select
>>> class Variance(Metric):  # of one number per document
...     x = torch.arange(100.0)
...
...     def value(self, masks):  # (G, n) bool -> (G,)
...         share = masks / masks.sum(1, keepdim=True)
...         return share @ self.x**2 - (share @ self.x) ** 2
>>> learning = {"n_epochs": 200, "partial": 1.0}
>>> settings = SelectionSettings(metrics={}, lamb=0.1, solver="policy_gradient", policy_gradient=learning)
>>> selection = select(np.eye(100), np.ones(100), settings, own_metrics={"variance": (Variance(), 1.0)})
>>> bool(selection.terms["variance"] > Variance.x.var())
True
"""

from abc import ABC, abstractmethod
from pkgutil import resolve_name
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from fineweb_mask.models.selection.budget import Budget
from fineweb_mask.models.settings.selection import METRICS

RANDOM_MASKS = 16  # drawn to estimate a metric on random selections


class Picks(Protocol):
    """The gains of one metric while documents are added one by one."""

    def gains(self) -> Tensor:
        """Return what adding each document brings, (n,) float32."""

    def add(self, document: int) -> None:
        """Add a document to the selection."""


class Effort(NamedTuple):
    """How many steps tighten a bound, and how long they are."""

    steps: int
    factor: float  # share of the step that would close the gap if the bound were linear and tight
    slower: float  # a step's factor divided by that of the step before


class Metric(ABC):
    """A diversity metric D of selections of n documents; larger is more diverse."""

    effort: ClassVar[Effort] = Effort(120, 1.0, 0.985)
    """How its tangents tighten the bound; of several metrics that of the fewest steps counts."""

    @abstractmethod
    def value(self, masks: Tensor) -> Tensor:
        """Evaluate a group of masks, (G, n) bool: (G,)."""

    def gradient(self, inclusion: Tensor) -> Tensor:
        """Return what the documents are searched by at inclusion probabilities (n,): (n,) float32.

        It is the gradient of a function of the probabilities that is D on masks. The budget counts as a constant.
        """
        raise NotImplementedError

    def gains(self, mask: Tensor) -> Tensor:
        """Return what adding each document brings, or dropping it costs, for a mask (n,) bool: (n,) float32."""
        return self.gradient(mask.float())

    def place(self, inclusion: Tensor) -> Tensor:
        """Return where the tangent at inclusion probabilities (n,) touches, which `tangent` and `pull` take."""
        raise NotImplementedError

    def tangent(self, place: Tensor) -> tuple[float, Tensor]:
        """Return h and g, (n,) float64, with D(m) <= h + g . m for every mask m within the budget."""
        raise NotImplementedError

    def pull(self, place: Tensor, taken: Tensor) -> Tensor:
        """Differentiate h + g . m at m, `taken` (n,) float64, with respect to the place: its shape."""
        raise NotImplementedError

    def moved(self, place: Tensor, step: Tensor, taken: Tensor) -> Tensor:  # noqa: ARG002 - of subclasses
        """Return the place less a step along its `pull` at `taken`, or less of it: where the tangent holds."""
        return place - step

    def picks(self) -> Picks:
        """Return the gains from the empty selection on."""
        raise NotImplementedError

    def among(self, index: Tensor, budget: Budget) -> "Metric":
        """Return the metric of some documents, index (b,), for a budget of these."""
        raise NotImplementedError

    def random_value(self, budget: Budget) -> float:
        """Return the value expected of a random selection; by default the mean over a few."""
        keys = torch.rand((RANDOM_MASKS, budget.n), generator=torch.Generator().manual_seed(0))
        masks = torch.stack([budget.fill(one) for one in keys.to(budget.costs.device)])
        return float(self.value(masks).double().mean())

    def coarse(self, generator: torch.Generator) -> "Metric":  # noqa: ARG002 - of subclasses
        """Return an approximation that costs less."""
        return self

    def offers(self, method: str) -> bool:
        """Return whether the metric defines an optional method."""
        return getattr(type(self), method) is not getattr(Metric, method)


class Widened(Metric):
    """A metric of n documents without `among`: masks over some of them, index (b,), are evaluated among all."""

    def __init__(self, metric: Metric, index: Tensor, n: int) -> None:
        self._metric, self._index, self._n = metric, index, n

    def value(self, masks: Tensor) -> Tensor:
        """Evaluate masks over the batch, (G, b) bool: (G,)."""
        whole = masks.new_zeros((len(masks), self._n))
        whole[:, self._index] = masks
        return self._metric.value(whole)


def metric_class(name: str) -> Any:  # noqa: ANN401 - each has its own constructor
    """Import the class of a metric in `METRICS`."""
    return resolve_name(f"fineweb_mask.models.selection.metrics.{METRICS[name].path}")
