"""Define what a diversity metric may offer: `value`, and the methods that enable solvers and the certificate.

A metric needs `value` only. Every other method is optional and enables one thing; solvers ask a metric for the method
(`isinstance(metric, SupportsTangent)`) and never for its class.

| method | what it enables | without it |
|---|---|---|
| `gradient` | `mean_field` | `mean_field` refuses the metric |
| `moment`, ... (`SupportsKernel`) | `mean_field`: Newton's steps or line searches, stored kernels | damped steps |
| `reduced` | annealing of large blocks in fewer directions | all directions |
| `focused` | swaps and proofs that look at all documents now and then | they look at all in every step |
| `swap_model` | thousands of swaps at once, inside a pool | batches of swaps, by `marginal_gains` |
| `tangent` | the upper bound on the objective | no bound (None) |
| `gains` | `greedy` | `greedy` refuses the metric |
| `marginal_gains` | exact gains in swaps and in the reported inclusion | the gradient at the mask, else 0 |
| `neighbours` | swapping many documents at once without conflicts | near-duplicates may be swapped together |
| `graph` | near-duplicates are read off its lists | they are searched |
| `restrict` | cheap batches in `policy_gradient` | every batch is evaluated among all documents |
| `random_value` | an exact lower end of the range | the mean over sampled masks |

In `kernel.py`, `KernelMetric` offers all of these for a metric that is a function of a sum over pairs.

Examples
--------
>>> import numpy as np, torch
>>> from fineweb_mask import SelectionSettings, select
>>> class Variance:  # one number per document
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
from collections.abc import Callable
from pkgutil import resolve_name
from typing import ClassVar, NamedTuple, Protocol, Self, runtime_checkable

import torch
from torch import Tensor

from fineweb_mask.models.selection.graphs.neighbours import Neighbours
from fineweb_mask.models.selection.rows import Rows
from fineweb_mask.models.settings.selection import METRICS, SelectionSettings


@runtime_checkable
class Metric(Protocol):
    """A diversity metric; larger is more diverse."""

    def value(self, masks: Tensor) -> Tensor:
        """Evaluate a group of masks, (G, n) bool: (G,)."""


@runtime_checkable
class SupportsGradient(Metric, Protocol):
    """A metric that `mean_field` can maximise."""

    def gradient(self, inclusion: Tensor) -> Tensor:
        """Differentiate the expected value under independent inclusion probabilities, (n,): (n,) float32.

        The size of the selection, the sum of `inclusion`, counts as a constant.
        """


@runtime_checkable
class SupportsKernel(Metric, Protocol):
    """A metric D = F(M), concave in a moment M = sum_i m_i phi_i of few numbers, which `mean_field` anneals.

    It falls with v = ||M||^2 = sum_ij m_i m_j kernel(i, j). The selection's size, the budget, counts as a constant.
    """

    linear_in_v: bool  # then Newton's method solves the annealing
    matrix: Tensor | None  # (n, n) float32, kernel(i, j), where several solves share it

    def moment(self, weights: Tensor) -> Tensor:
        """Sum the documents' feature maps under weights or over a mask, (n,): float64."""

    def of_moment(self, moment: Tensor, budget: float) -> Tensor:
        """Compute F for a selection of `budget` documents: a float64 scalar."""

    def gradient_at(self, moment: Tensor, budget: float, weight: float = 1.0) -> Tensor:
        """Differentiate weight * F with respect to the documents' probabilities: (n,) float32."""

    def along(self, moment: Tensor, way: Tensor, budget: float) -> Callable[[float], float]:
        """Return the derivative of F(moment + share * way) with respect to the share, as a function of it."""

    def height(self, moment: Tensor, budget: float) -> float:
        """Compute the constant h of the tangent at a moment: D(m) <= h + gradient_at(moment) . m."""

    def slope(self, v: float, budget: float) -> float:
        """Compute -dD/dv, at least 0."""

    def scores(self, moment: Tensor) -> Tensor:
        """Sum kernel(i, j) w_j over j from the moment of w: (n,) float32."""

    def whole_kernel(self) -> Tensor:
        """Evaluate the kernel between all documents: (n, n) float32."""

    def restrict(self, index: Tensor) -> Self:
        """Return the same metric over a batch of documents, index (b,)."""


@runtime_checkable
class SupportsReduction(Metric, Protocol):
    """A metric that can be approximated in fewer directions."""

    def reduced(self, count: int, generator: torch.Generator) -> Metric:
        """Return an approximation in `count` directions, or the metric itself if it has no more than a few of them."""


@runtime_checkable
class SupportsFocus(Metric, Protocol):
    """A metric that can look at the documents alone which may be selected."""

    def focused(self, index: Tensor) -> "SupportsFocus":
        """Return the metric of the same n documents, where those not in index (b,) gain less than all that are.

        Its values are right for selections from index.
        """


class SwapModel(NamedTuple):
    """How a weighted metric changes when selected documents are swapped for others."""

    gains: Tensor  # (n,) float32, the gain from adding each document, or the loss from dropping it
    cross: Callable[[Tensor], Tensor]  # documents (p,) -> (p, p), how much each reduces the gains of the others


@runtime_checkable
class SupportsSwaps(Metric, Protocol):
    """A metric that tells what every swap inside a pool of documents gains, at least."""

    swap_pool: int  # documents among which one round swaps

    def swap_model(self, mask: Tensor, weight: float) -> SwapModel:
        """Describe what swaps change in weight * D, for a mask (n,)."""


@runtime_checkable
class SupportsPenalties(Metric, Protocol):
    """A metric that is minus a sum over pairs of documents, divided by the selection's size."""

    def penalised(self, gains: Tensor, penalty: float, costs: Tensor | None = None) -> Tensor:
        """Penalise every document for its pairs with those that rank above it: gains (n,) float32 -> (n,) float32."""


@runtime_checkable
class SupportsMarginalGains(Metric, Protocol):
    """A metric that knows the marginal gain of every document."""

    def marginal_gains(self, mask: Tensor) -> Tensor:
        """Compute the gain from adding each document, or the loss from dropping it, for a mask (n,): (n,) float32.

        The size of the selection counts as a constant.
        """


@runtime_checkable
class SupportsLists(Metric, Protocol):
    """A metric that reads lists of each document's nearest, in which near-duplicates are found, too."""

    @property
    def graph(self) -> Neighbours:
        """The lists."""


class Effort(NamedTuple):
    """How many and how long steps tighten a tangent."""

    n_steps: int
    closed: float  # share of the range from random to the bound: a smaller gap needs no tightening
    factor: float  # share of the step that would close the gap if the bound were linear and tight
    slower: float  # a step's factor divided by that of the step before


EFFORT = Effort(120, 5e-5, 0.3, 0.995)  # measured at n = 50,000, d = 768


class Tangent(Protocol):
    """A linear function that is never below a weighted metric on masks of K documents; it can be moved down.

    One that also bounds selections by a budget of tokens has an attribute `of_shares`: False if it is above the metric
    on every mask, True if it is with w . m divided by the mask's mass and multiplied with `budget`.
    """

    effort: Effort

    def evaluate(self) -> tuple[float, Tensor]:
        """Return h and w, (n,) float64, with weight * D(m) <= h + w . m for every mask m of K documents."""

    def descend(self, mask: Tensor, fall: float) -> None:
        """Move so that h + w . mask falls by `fall`, to first order; the function stays above the metric."""


@runtime_checkable
class FocusableTangent(Tangent, Protocol):
    """A tangent of a metric that may be replaced by its `focused` one, and back."""

    metric: Metric


@runtime_checkable
class SupportsTangent(Metric, Protocol):
    """A metric that the certificate can bound.

    If its tangents rest on something that is not proven, an attribute `bound_assumes` says so (else None or missing).
    """

    def tangent(self, inclusion: Tensor, budget: float, weight: float) -> Tangent:
        """Return the tangent of weight * D, weight > 0, at inclusion probabilities (n,) that sum to `budget`."""


@runtime_checkable
class Gains(Protocol):
    """Marginal gains of one weighted metric while documents are added one by one."""

    def gains(self) -> Tensor:
        """Return the gain of adding each document, (n,) float32."""

    def add(self, document: int) -> None:
        """Add a document to the selection."""


@runtime_checkable
class LazyGains(Gains, Protocol):
    """Gains that only fall, so that stale ones are upper bounds: `gains` returns these."""

    def refresh(self, documents: Tensor) -> Tensor:
        """Evaluate the gains of some documents (b,) exactly, and store them: (b,) float32."""


@runtime_checkable
class RestrictableGains(Gains, Protocol):
    """Gains that can begin with a selection, and continue among some documents alone."""

    def restart(self, mask: Tensor) -> None:
        """Begin with a selection, mask (n,) bool."""

    def among(self, index: Tensor) -> Gains:
        """Return the gains of documents (b,) alone, from the present selection on."""


@runtime_checkable
class SupportsGains(Metric, Protocol):
    """A metric that `greedy` can maximise."""

    def gains(self, budget: float, weight: float) -> Gains:
        """Return the gains of weight * D for an empty selection, with the denominators of `budget` documents."""


@runtime_checkable
class SupportsNeighbours(Metric, Protocol):
    """A metric for which similar documents share their marginal gains."""

    def neighbours(self, count: int) -> Tensor:
        """Return the documents that share most with each document, itself included, (count, n) int64."""


@runtime_checkable
class SupportsRestrict(Metric, Protocol):
    """A metric that can be computed among some documents alone."""

    def restrict(self, index: Tensor) -> Metric:
        """Return the same metric over a batch of documents, index (b,)."""


@runtime_checkable
class SupportsRandomValue(Metric, Protocol):
    """A metric with a closed form for random subsets."""

    def random_value(self, budget: float) -> float:
        """Return the expected value of a uniform random subset of `budget` documents."""


class Weighed:
    """A metric that is a mean over the selection, by documents or by their masses."""

    masses: Tensor | None = None  # (n,) float32, with a budget of tokens

    def size(self, weights: Tensor) -> Tensor:
        """Sum the masses under weights or over masks, (n,) or (G, n): () or (G,) float64; without masses, 1 each."""
        if self.masses is None:
            return weights.sum(-1, dtype=torch.float64)
        return weights.double() @ self.masses.double()


class BuiltInMetric(ABC):
    """Base of the metrics that settings name; see `METRICS` in `models/settings/selection.py`."""

    sweep_effort: ClassVar[float] = 1.0  # share of the certificate's steps that each selection of a sweep takes

    @abstractmethod
    def __init__(self, rows: Rows) -> None: ...

    @classmethod
    def for_block(
        cls,
        rows: Rows,
        settings: SelectionSettings,  # noqa: ARG003 - for subclasses
        budget: float,  # noqa: ARG003
        masses: Tensor | None = None,  # noqa: ARG003
    ) -> Self:
        """Make the metric for selections of `budget` documents; for a budget of tokens `masses` (n,) weigh them.

        A metric that leaves masses aside weighs all documents alike and has no bound under a budget of tokens.
        """
        return cls(rows)

    @abstractmethod
    def value(self, masks: Tensor) -> Tensor:
        """Evaluate a group of masks, (G, n) bool: (G,) float64."""


def metric_class(name: str) -> type[BuiltInMetric]:
    """Import the class of a metric in `METRICS`."""
    found: type[BuiltInMetric] = resolve_name(f"fineweb_mask.models.selection.metrics.{METRICS[name].path}")
    return found
