"""Share the code of metrics that are a concave function of the squared norm of one small moment of the selection."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from copy import copy
from typing import ClassVar, Self, TypeVar

import torch
from torch import Tensor

from fineweb_mask.models.selection.metrics.base import (
    EFFORT,
    BuiltInMetric,
    Effort,
    Metric,
    SupportsKernel,
    SwapModel,
    Weighed,
    metric_class,
)
from fineweb_mask.models.selection.rows import Rows, Standard
from fineweb_mask.models.settings.selection import SelectionSettings

AnyMetric = TypeVar("AnyMetric", bound=Metric)

WHOLE_KERNEL = 16_384  # largest number of documents for which greedy stores the kernel matrix: 1 GiB
PRODUCTS = 1_024  # rows that are multiplied with few others at once: what they make stays in the cache
PICKS_WORTH_IT = 1 / 16  # share of the documents: for more picks, one product is faster than a pass for each pick


class KernelMetric(Weighed, BuiltInMetric, SupportsKernel):
    """A metric that depends on the selection only through v = sum_ij m_i m_j kernel(i, j).

    The sum is the squared norm of a small moment M = sum_i m_i phi_i: of d numbers for `pairwise`, of d x d for `disf`.
    D = F(M) is a concave, falling function of it. Annealing maximises F at the moment of the inclusion probabilities,
    and F's tangents bound D. The size of the selection, the budget, counts as a constant. With masses, phi_i holds that
    of document i, and D is a mean by mass.
    """

    sweep_effort = 0.5  # the proof costs more than the solve
    effort: ClassVar[Effort] = EFFORT  # spent on the certificate
    linear_in_v = False
    swap_pool = 4096

    rows: Rows
    credit: Tensor | None = None  # (n,) float32, with masses: D = F(M) + sum of credits / mass^2
    diagonal: Tensor  # (n,) float32, kernel(i, i)
    matrix: Tensor | None = None
    rest: Tensor | None = None  # moment of what is selected besides these rows, see `beside`
    rest_size: float = 0.0  # its documents, or mass

    @abstractmethod
    def __init__(
        self,
        rows: Rows,
        masses: Tensor | None = None,
        standard: Standard | None = None,
    ) -> None:
        """Measure rows with masses (n,), for a budget of tokens, by the mean and deviation of a whole corpus."""

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

    def beside(self, rest: Tensor, size: float) -> Self:
        """Return the metric of these rows together with other documents, whose selection is known.

        D is then that of both: of the moment `rest` and of the rows'. `size` is how many documents, or how much mass,
        the others have. Their own credit is left out.
        """
        other = copy(self)
        other.rest, other.rest_size, other.credit = rest, size, None
        return other

    def total(self, moment: Tensor) -> Tensor:
        """Add the moment of what else is selected."""
        return moment if self.rest is None else moment + self.rest

    def gradient(self, inclusion: Tensor) -> Tensor:
        """Differentiate F at the moment of the inclusion probabilities, (n,): (n,) float32."""
        return self.gradient_at(self.moment(inclusion), float(self.size(inclusion)))

    @property
    def few(self) -> int:
        """How many documents' kernel with all others costs less than the scores of all."""
        return 0

    @abstractmethod
    def kernel_of(self, products: Tensor) -> Tensor:
        """Compute the kernel between documents from the inner products of their rows, of the same shape, in place."""

    def outer(self, v: Tensor, budget: float | Tensor) -> Tensor:
        """Compute D from v, for a selection of `budget` documents."""
        return self.outer_of(v, budget + self.rest_size)

    def slope(self, v: float, budget: float) -> float:
        """Compute -dD/dv, at least 0."""
        return self.slope_of(v, budget + self.rest_size)

    @abstractmethod
    def outer_of(self, v: Tensor, size: float | Tensor) -> Tensor:
        """Compute D from v, for a selection of `size` documents in all."""

    @abstractmethod
    def slope_of(self, v: float, size: float) -> float:
        """Compute -dD/dv, at least 0, for a selection of `size` documents in all."""

    @abstractmethod
    def tangent_gradient(self, moment: Tensor, reached: Tensor, budget: float) -> Tensor:
        """Differentiate the value at `reached` of the tangent at `moment` with respect to `moment`: its shape."""

    def of_moment(self, moment: Tensor, budget: float) -> Tensor:
        """Compute `outer` of the squared norm."""
        return self.outer(moment.square().sum(), budget)

    def gradient_at(self, moment: Tensor, budget: float, weight: float = 1.0) -> Tensor:
        """Compute -2 weight slope scores: (n,) float32."""
        slope = weight * self.slope(float(moment.square().sum()), budget)
        return self.scores(moment).mul_(-2 * slope)

    def along(self, moment: Tensor, way: Tensor, budget: float) -> Callable[[float], float]:
        """Differentiate D along the way, where v is quadratic in the share."""
        start, cross, end = (float(part) for part in (moment.square().sum(), (moment * way).sum(), way.square().sum()))

        def derivative(share: float) -> float:
            v = start + 2 * share * cross + share**2 * end
            return -self.slope(v, budget) * 2 * (cross + share * end)

        return derivative

    def height(self, moment: Tensor, budget: float) -> float:
        """Compute the constant h of the tangent at a moment: D(m) <= h - 2 slope (scores . m)."""
        v, own = moment.square().sum(), moment if self.rest is None else moment - self.rest
        return float(self.outer(v, budget) + 2 * self.slope(float(v), budget) * (moment * own).sum())

    def tangent(self, inclusion: Tensor, budget: float, weight: float) -> "KernelTangent":
        """Return the tangent of weight * D at the moment of the inclusion probabilities (n,)."""
        return KernelTangent(self, self.moment(inclusion), budget, weight)

    def gains(self, budget: float, weight: float) -> "KernelGains":
        """Return the marginal gains of weight * D, for an empty selection."""
        return KernelGains(self, budget, weight)

    def marginal_gains(self, mask: Tensor) -> Tensor:
        """Compute the marginal gain of each document, (n,), through the tangent of D at the present v."""
        return self.swap_model(mask, 1.0).gains

    def swap_model(self, mask: Tensor, weight: float) -> SwapModel:
        """Describe swaps through the tangent of D at the present v: they gain at least what it promises."""
        moment = self.moment(mask)
        slope = weight * self.slope(float(moment.square().sum()), float(self.size(mask)))
        own = torch.where(mask, self.diagonal, -self.diagonal)

        def cross(pool: Tensor) -> Tensor:
            features = self.rows.take(pool)
            return 2 * slope * self.kernel_of(features @ features.T)

        return SwapModel((2 * self.scores(moment)).sub_(own).mul_(-slope), cross)

    def random_value(self, budget: float) -> float:
        """Compute D at the expected v of a uniform random subset."""
        n = self.rows.n
        own = float(self.diagonal.sum(dtype=torch.float64))
        everyone = self.moment(torch.ones(n, device=self.rows.device))
        rest = 0.0
        if self.rest is not None:
            everyone = everyone - self.rest
            rest = float(self.rest.square().sum() + 2 * budget / n * (self.rest * everyone).sum())
        pairs = (float(everyone.square().sum()) - own) / max(n * (n - 1), 1)
        v = rest + budget * own / n + budget * (budget - 1) * pairs
        credit = 0.0 if self.credit is None else float(self.credit.sum(dtype=torch.float64)) / (n * budget)
        return float(self.outer(torch.tensor(max(v, 0.0), dtype=torch.float64), budget)) + credit

    def whole_kernel(self) -> Tensor:
        """Evaluate the kernel between all documents: (n, n) float32."""
        everyone = self.rows.block(slice(None))
        return self.kernel_of(everyone @ everyone.T)

    def restrict(self, index: Tensor) -> Self:
        """Return the metric over a batch (b,), with the rows as they are: `disf` keeps the block's standardisation.

        Its moments are those of the batch alone.
        """
        batch = object.__new__(type(self))
        batch.rows = self.rows.only(index)
        batch.diagonal = self.diagonal[index]
        batch.rest_size = self.rest_size
        batch.masses, batch.credit = (None if of is None else of[index] for of in (self.masses, self.credit))
        return batch


class KernelTangent:
    """The tangent of a weighted kernel metric at a moment, which need not be that of any probabilities.

    With masses, it is above weight * F(M) at the mass of the selection: the credit is not in it.
    """

    def __init__(self, metric: KernelMetric, moment: Tensor, budget: float, weight: float) -> None:
        self.metric, self.moment, self.budget, self.weight = metric, moment, budget, weight
        self.effort = metric.effort
        self.of_shares: bool | None = None if metric.masses is None else True

    def evaluate(self) -> tuple[float, Tensor]:
        """Return the height and the slope of every document, (n,) float64."""
        slopes = self.metric.gradient_at(self.moment, self.budget, self.weight).double()
        return self.weight * self.metric.height(self.moment, self.budget), slopes

    def descend(self, mask: Tensor, fall: float) -> None:
        """Move the moment, at most as far as the mask's own, where the value at the mask is least."""
        reached = self.metric.moment(mask)
        step = falling_step(self.weight * self.metric.tangent_gradient(self.moment, reached, self.budget), fall)
        length, longest = (float(torch.linalg.vector_norm(way)) for way in (step, reached - self.moment))
        self.moment = self.moment - (step if length <= longest else step * (longest / length))


class KernelGains:
    """The gains of a kernel metric, from the scores of the documents selected so far.

    Each pick takes one pass, O(n d), or O(n) where the whole kernel matrix is small and computed in advance.
    """

    def __init__(self, metric: KernelMetric, budget: float, weight: float) -> None:
        self.metric, self.weight, self.budget = metric, weight, budget
        self.scores = torch.zeros_like(metric.diagonal) if metric.rest is None else metric.scores(metric.rest)
        self.v = torch.zeros((), dtype=torch.float64, device=metric.diagonal.device)
        if metric.rest is not None:
            self.v = metric.rest.square().sum()
        self._mask = torch.zeros(metric.rows.n, dtype=torch.bool, device=metric.diagonal.device)
        self._matrix = metric.matrix
        if self._matrix is None and metric.rows.n <= WHOLE_KERNEL and budget > PICKS_WORTH_IT * metric.rows.n:
            self._matrix = metric.whole_kernel()

    def gains(self) -> Tensor:
        """Return every document's gain, (n,) float32."""
        v = self.v + (2 * self.scores + self.metric.diagonal).double()
        return ((self.metric.outer(v, self.budget) - self.metric.outer(self.v, self.budget)) * self.weight).float()

    def restart(self, mask: Tensor) -> None:
        """Begin with a selection, mask (n,) bool, which holds what was added before or not."""
        metric, added = self.metric, (mask & ~self._mask).nonzero()[:, 0]
        if len(added) > metric.few or bool((self._mask & ~mask).any()):
            moment = metric.moment(mask)
            self.scores, self.v = metric.scores(moment), moment.square().sum()
        else:
            before = self.scores[added]
            columns = metric.rows.take(added).T
            for part in metric.rows.slices(PRODUCTS):
                self.scores[part] += metric.kernel_of(metric.rows.block(part) @ columns).sum(1)
            self.v = self.v + (before.double() + self.scores[added]).sum()
        self._mask = mask.clone()

    def among(self, index: Tensor) -> "KernelGains":
        """Return the gains of documents (b,) alone, from the present selection on."""
        gains = KernelGains(self.metric.restrict(index), self.budget, self.weight)
        gains.scores, gains.v = self.scores[index], self.v
        return gains

    def add(self, document: int) -> None:
        """Add a document."""
        self.v = self.v + 2 * self.scores[document] + self.metric.diagonal[document]
        if self._matrix is not None:
            self.scores += self._matrix[document]
        else:
            row = self.metric.rows.take(torch.tensor([document], device=self.scores.device))
            self.scores += self.metric.kernel_of(self.metric.rows.dot(row[0]))


def kernel_metric_class(name: str) -> type[KernelMetric]:
    """Import the class of a metric in `METRICS` that is known to be one of a kernel."""
    found = metric_class(name)
    if not issubclass(found, KernelMetric):
        raise TypeError(f"{name} is no metric of a kernel")
    return found


def falling_step(gradient: Tensor, fall: float) -> Tensor:
    """Return the step along a gradient, of its shape, to be subtracted so that a linear function falls by `fall`."""
    square = float(gradient.square().sum())
    return gradient * (fall / square) if square > 0 else gradient


def kernels_first(metrics: Mapping[str, AnyMetric]) -> dict[str, AnyMetric]:
    """Sort metrics into the order in which bounds are summed and measures written: equal inputs give equal bytes."""
    return dict(sorted(metrics.items(), key=lambda item: not isinstance(item[1], SupportsKernel)))
