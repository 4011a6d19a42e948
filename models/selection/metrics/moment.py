"""Share the code of metrics that are a concave function of one small moment of the selection."""

from abc import abstractmethod
from copy import copy
from typing import ClassVar, Self

import torch
from torch import Tensor

from fineweb_mask.models.selection.budget import Budget
from fineweb_mask.models.selection.metrics.base import Metric
from fineweb_mask.models.selection.neighbours import Neighbours
from fineweb_mask.models.selection.rows import Rows

LEAST_SQUARE = 1e-30  # of a moment that other numbers are divided by


class MomentMetric(Metric):
    """D = -f ||M||^(2 p) + sum_i credit_i m_i, with the mean moment M = sum_i s_i m_i phi_i of what is selected.

    s are the budget's shares, the power p is 1 or 1/2, and phi_i has d numbers for `pairwise`, d x d for `disf`. The
    factor f is K / (K - 1) for a budget of K documents, which makes D the paper's mean over pairs; for tokens it is 1.

    D can be that of some documents *beside* others whose selection is known: `rest` is then the others' part of the
    mean moment.
    """

    power: ClassVar[float]

    @abstractmethod
    def __init__(
        self, rows: Rows, budget: Budget, lists: Neighbours | None = None, standard: Tensor | None = None
    ) -> None:
        """Measure rows (n, d), by the mean and deviation of a whole corpus where these are read; lists are not."""

    def prepare(self, rows: Rows, budget: Budget, kernel: Tensor) -> None:
        """Keep what all methods read; `kernel` (n,) float32 is ||phi_i||^2."""
        self.rows, self.budget, self.kernel = rows, budget, kernel
        self.shares, self.rest = budget.shares, None
        self.factor = _factor(budget, 1.0)
        self.constant = 0.0

    shares: Tensor  # (n,) float32
    rest: Tensor | None
    factor: float
    constant: float  # added to D: the credit of the others, where documents count

    def beside(self, rest: Tensor, times: float) -> Self:
        """Return the metric of these documents beside others, where `times` the budget is selected in all.

        `rest` is what the others add to the mean moment.
        """
        other = copy(self)
        other.shares, other.rest, other.factor = self.shares / times, rest, _factor(self.budget, times)
        other.constant = other.credit_of(1 - 1 / times, times)
        return other

    def credit_of(self, part: float, times: float = 1.0) -> float:
        """Return the credit of a part of `times` the budget's documents; of tokens it is not known, and 0."""
        if self.credit is None or not self.budget.counts_documents:
            return 0.0
        return self.factor * part / (self.budget.limit * times)

    @property
    def credit(self) -> Tensor | None:
        """What of D is linear in the mask, (n,) float32."""
        return None

    @abstractmethod
    def sum_moments(self, weights: Tensor) -> Tensor:
        """Sum weights_i phi_i, weights (n,): float64."""

    @abstractmethod
    def scores(self, moment: Tensor) -> Tensor:
        """Compute <phi_i, M> of all documents: (n,) float32."""

    @abstractmethod
    def kernel_of(self, products: Tensor) -> Tensor:
        """Compute <phi_i, phi_j> from the inner products of rows, of the same shape, in place."""

    def moment(self, inclusion: Tensor) -> Tensor:
        """Compute the mean moment of probabilities or of a mask, (n,)."""
        own = self.sum_moments(inclusion * self.shares)
        return own if self.rest is None else own + self.rest

    def outer(self, v: Tensor) -> Tensor:
        """Compute D without credit from v = ||M||^2."""
        return -self.factor * v.clamp(min=0) ** self.power

    def slope(self, v: float) -> float:
        """Compute -dD/dv."""
        return float(self.factor * self.power * max(v, LEAST_SQUARE) ** (self.power - 1))

    def value(self, masks: Tensor) -> Tensor:
        """Evaluate masks (G, n): (G,) float64."""
        squares = torch.stack([self.moment(mask).square().sum() for mask in masks])
        value = self.outer(squares) + self.constant
        return value if self.credit is None else value + (masks * self.credit).sum(1, dtype=torch.float64)

    def gradient(self, inclusion: Tensor) -> Tensor:
        """Differentiate D at the moment of the probabilities (n,): (n,) float32."""
        return self._gradient_at(self.moment(inclusion))

    def _gradient_at(self, moment: Tensor) -> Tensor:
        slope = self.slope(float(moment.square().sum()))
        gradient = (self.scores(moment) * self.shares).mul_(-2 * slope)
        return gradient if self.credit is None else gradient.add_(self.credit)

    def gains(self, mask: Tensor) -> Tensor:
        """Return what adding each document brings, or dropping it costs: (n,) float32."""
        moment = self.moment(mask)
        return self.gains_at(moment.square().sum(), self.scores(moment), mask)

    def gains_at(self, v: Tensor, scores: Tensor, mask: Tensor) -> Tensor:
        """Return what adding each document brings, or dropping it costs, from ||M||^2 and the scores (n,)."""
        sign = torch.where(mask, -1.0, 1.0)
        change = self.shares * (2 * sign * scores + self.shares * self.kernel)
        if self.power == 1:
            gains = sign * change * -self.factor
        else:  # a difference of roots, without cancellation
            root = (v + change).clamp(min=0).sqrt() + v.sqrt()
            gains = sign * change * (-self.factor / root.clamp(min=LEAST_SQUARE))
        return (gains if self.credit is None else gains + self.credit).float()

    def place(self, inclusion: Tensor) -> Tensor:
        """Return the moment at which the tangent touches."""
        return self.moment(inclusion)

    def tangent(self, place: Tensor) -> tuple[float, Tensor]:
        """Return the tangent at a moment: D is concave in it."""
        v = place.square().sum()
        own = v if self.rest is None else v - (place * self.rest).sum()
        height = float(self.outer(v) + 2 * self.slope(float(v)) * own) + self.constant
        return height, self._gradient_at(place).double()

    def pull(self, place: Tensor, taken: Tensor) -> Tensor:
        """Differentiate the tangent at a moment, evaluated at `taken`, with respect to the moment."""
        to, v = self.moment(taken), max(float(place.square().sum()), LEAST_SQUARE)
        slope = self.slope(v)
        bend = slope * (self.power - 1) / v
        return 2 * slope * (place - to) + place * (4 * bend * (v - float((place * to).sum())))

    def moved(self, place: Tensor, step: Tensor, taken: Tensor) -> Tensor:
        """Move a moment, at most as far as that of `taken` is away."""
        length, most = torch.linalg.vector_norm(step), torch.linalg.vector_norm(place - self.moment(taken))
        capped: Tensor = place - step * (most / length).clamp(max=1.0)
        return capped

    def random_value(self, budget: Budget) -> float:
        """Compute D at the expected ||M||^2 of a uniform random selection."""
        n, size = budget.n, min(budget.size, budget.n)
        everyone = self.sum_moments(self.shares)
        own = float(self.shares.double().square() @ self.kernel.double())
        pairs = (float(everyone.square().sum()) - own) / max(n * (n - 1), 1)
        v = size * own / n + size * (size - 1) * pairs
        if self.rest is not None:
            v += float(self.rest.square().sum() + 2 * size / n * (self.rest * everyone).sum())
        credit = 0.0 if self.credit is None else size / n * float(self.credit.sum(dtype=torch.float64))
        return float(self.outer(torch.tensor(v, dtype=torch.float64))) + credit + self.constant

    def picks(self) -> "MomentPicks":
        """Return the gains from the empty selection on."""
        return MomentPicks(self)

    def among(self, index: Tensor, budget: Budget) -> Self:
        """Return the metric of some documents, index (b,), with rows as they are: `disf` keeps the standardisation."""
        batch = object.__new__(type(self))
        batch.prepare(self.rows.only(index), budget, self.kernel[index])
        return batch


class MomentPicks:
    """The gains of a metric of moments, each pick by one pass over the rows."""

    def __init__(self, metric: MomentMetric) -> None:
        self.metric = metric
        self._mask = torch.zeros_like(metric.shares, dtype=torch.bool)
        moment = metric.moment(self._mask)
        self._scores, self._v = metric.scores(moment), moment.square().sum()

    def gains(self) -> Tensor:
        """Return what adding each document brings, (n,) float32."""
        return self.metric.gains_at(self._v, self._scores, torch.zeros_like(self._mask))

    def add(self, document: int) -> None:
        """Add a document."""
        metric, share = self.metric, self.metric.shares[document]
        self._v = self._v + share * (2 * self._scores[document] + share * metric.kernel[document])
        self._scores += metric.kernel_of(metric.rows.matrix @ metric.rows.matrix[document]) * share


def _factor(budget: Budget, times: float) -> float:
    size = budget.limit * times
    return size / (size - 1) if budget.counts_documents and size > 1 else 1.0
