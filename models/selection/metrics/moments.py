"""`pairwise` and `disf`: concave functions of the mean moment of what is selected."""

from abc import abstractmethod
from typing import ClassVar, Self

import torch
from torch import Tensor

from fineweb_mask.models.selection.budget import Budget
from fineweb_mask.models.selection.metrics.base import Effort, Metric
from fineweb_mask.models.selection.neighbours import Neighbours
from fineweb_mask.models.selection.rows import Rows

LEAST_SQUARE = 1e-30  # of a moment that other numbers are divided by
DIRECTIONS = 128  # principal directions of the coarse `disf`


class MomentMetric(Metric):
    """D = -f ||M||^(2 p) + sum_i credit_i m_i, with the mean moment M = sum_i s_i m_i phi_i of what is selected.

    s are the budget's shares, the power p is 1 or 1/2, and phi_i has d numbers for `pairwise`, d x d for `disf`. The
    factor f is K / (K - 1) for a budget of K documents, which makes D the paper's mean over pairs; for tokens it is 1.
    The credit takes the pairs of documents with themselves out of the mean.

    D can be that of some documents *beside* others whose selection is known: `rest` is then the others' part of the
    mean moment.
    """

    power: ClassVar[float]
    is_of_pairs: ClassVar[bool] = False  # whether there is a credit

    def __init__(self, rows: Rows, budget: Budget, rest: Tensor | None = None, times: float = 1.0) -> None:
        """Measure rows (n, d) as they are, where `times` the budget is selected together with the others."""
        self.rows, self.budget, size = rows, budget, budget.limit * times
        self.rest = torch.zeros((), dtype=torch.float64) if rest is None else rest
        self.shares = budget.shares / times  # (n,) float32
        self.factor = size / (size - 1) if budget.counts_documents and size > 1 else 1.0
        self.kernel = self.kernel_of(rows.square_norms())  # ||phi_i||^2, (n,) float32
        self.credit = self.shares.square() * (self.factor * self.is_of_pairs)  # (n,) float32
        # of all documents together, and of the others; where tokens count it is not known, and 0
        self.whole_credit = self.factor / size if self.is_of_pairs and budget.counts_documents else 0.0
        self.constant = (1 - 1 / times) * self.whole_credit

    @classmethod
    def of(
        cls,
        rows: Rows,
        budget: Budget,
        lists: Neighbours | None = None,  # noqa: ARG003 - of others
        standard: Tensor | None = None,  # noqa: ARG003 - of others
    ) -> Self:
        """Measure unit rows (n, d); `standard` is what a whole corpus is standardised by, where the rows are."""
        return cls(rows, budget)

    def beside(self, rest: Tensor, times: float) -> Self:
        """Return the metric of these documents beside others, which add `rest` to the mean moment."""
        return type(self)(self.rows, self.budget, rest, times)

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
        return self.sum_moments(inclusion * self.shares) + self.rest

    def outer(self, v: Tensor) -> Tensor:
        """Compute D without credit from v = ||M||^2."""
        return -self.factor * v.clamp(min=0) ** self.power

    def slope(self, v: float) -> float:
        """Compute -dD/dv."""
        return float(self.factor * self.power * max(v, LEAST_SQUARE) ** (self.power - 1))

    def value(self, masks: Tensor) -> Tensor:
        """Evaluate masks (G, n): (G,) float64."""
        squares = torch.stack([self.moment(mask).square().sum() for mask in masks])
        return self.outer(squares) + self.constant + (masks * self.credit).sum(1, dtype=torch.float64)

    def gradient(self, inclusion: Tensor) -> Tensor:
        """Differentiate D at the moment of the probabilities (n,): (n,) float32."""
        return self._gradient_at(self.moment(inclusion))

    def _gradient_at(self, moment: Tensor) -> Tensor:
        slope = self.slope(float(moment.square().sum()))
        return (self.scores(moment) * self.shares).mul_(-2 * slope).add_(self.credit)

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
        return (gains + self.credit).float()

    def place(self, inclusion: Tensor) -> Tensor:
        """Return the moment at which the tangent touches."""
        return self.moment(inclusion)

    def tangent(self, place: Tensor) -> tuple[float, Tensor]:
        """Return the tangent at a moment: D is concave in it."""
        v = place.square().sum()
        own = v - (place * self.rest).sum()
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
        v += float(self.rest.square().sum() + 2 * size / n * (self.rest * everyone).sum())
        credit = size / n * float(self.credit.sum(dtype=torch.float64))
        return float(self.outer(torch.tensor(v, dtype=torch.float64))) + credit + self.constant

    def picks(self) -> "MomentPicks":
        """Return the gains from the empty selection on."""
        return MomentPicks(self)

    def among(self, index: Tensor, budget: Budget) -> Self:
        """Return the metric of some documents, index (b,), with rows as they are: `disf` keeps the standardisation."""
        return type(self)(self.rows.only(index), budget)


class MomentPicks:
    """The gains of a metric of moments, each pick by one pass over the rows."""

    def __init__(self, metric: MomentMetric) -> None:
        self.metric = metric
        self._mask = torch.zeros_like(metric.shares, dtype=torch.bool)
        moment = metric.moment(self._mask)
        self._scores, self._v = metric.scores(moment), moment.square().sum()

    def gains(self) -> Tensor:
        """Return what adding each document brings, (n,) float32."""
        return self.metric.gains_at(self._v, self._scores, self._mask)

    def add(self, document: int) -> None:
        """Add a document."""
        metric, share = self.metric, self.metric.shares[document]
        self._v = self._v + share * (2 * self._scores[document] + share * metric.kernel[document])
        self._scores += metric.kernel_of(metric.rows.matrix @ metric.rows.matrix[document]) * share


class Pairwise(MomentMetric):
    """Minus the mean cosine over ordered pairs of selected documents (paper: Pair_simi).

    D = -(||sum_i m_i x_i||^2 - K) / (K (K - 1)) for unit rows; a selection of one has no pairs and D = 0.

    For a budget of tokens B with costs c (ours), D = -(||sum_i m_i c_i x_i||^2 - sum_i m_i c_i^2) / B^2: minus the mean
    cosine between the documents of two tokens drawn at random, where two of one document count 0.
    """

    power = 1.0
    is_of_pairs = True

    def value(self, masks: Tensor) -> Tensor:
        """Evaluate masks (G, n) by one matrix product: (G,) float64."""
        if len(masks) == 1:
            return super().value(masks)
        sums = self.rows.weighted_sum(masks * self.shares) + self.rest
        return self.outer(sums.square().sum(1)) + self.constant + masks.double() @ self.credit.double()

    def sum_moments(self, weights: Tensor) -> Tensor:
        """Sum the rows under weights (n,): (d,) float64."""
        return self.rows.weighted_sum(weights)

    def scores(self, moment: Tensor) -> Tensor:
        """Compute <x_i, M>: (n,) float32."""
        return self.rows.matrix @ moment.float()

    def kernel_of(self, products: Tensor) -> Tensor:
        """Return the inner products themselves, the cosines."""
        return products


class Disf(MomentMetric):
    """Minus the Frobenius norm of the second moment, which is least if all directions are covered evenly (paper: DiSF).

    D = -||C||_F with C = sum_i m_i z_i z_i^T / (K - 1). z is standardised once by the block's mean and standard
    deviation, and scaled to length sqrt(d) (ours: this makes D concave). The published code standardises by the
    selected documents, where tr C is d as well. With a free trace, the least norm would be that of documents near the
    mean. For K = 1 the divisor is 1.

    For a budget of tokens B with costs c (ours), C = sum_i m_i c_i z_i z_i^T / B.
    """

    power = 0.5
    effort = Effort(32, 0.5, 0.97)  # a step costs O(n d^2): fewer of them

    @classmethod
    def of(
        cls,
        rows: Rows,
        budget: Budget,
        lists: Neighbours | None = None,  # noqa: ARG003 - of others
        standard: Tensor | None = None,
    ) -> Self:
        """Measure unit rows (n, d), standardised."""
        return cls(rows.standardised(standard), budget)

    def sum_moments(self, weights: Tensor) -> Tensor:
        """Sum the outer products under weights (n,): (d, d) float64."""
        return self.rows.second_moment(weights)

    def scores(self, moment: Tensor) -> Tensor:
        """Compute z_i^T M z_i: (n,) float32."""
        return self.rows.quadratic(moment)

    def kernel_of(self, products: Tensor) -> Tensor:
        """Square the inner products."""
        return products.square_()

    def coarse(self, generator: torch.Generator) -> "Disf":
        """Approximate D in the principal directions, where there are many more than `DIRECTIONS`.

        All other directions become one of equal variance. This is exact for their share of ||C||_F if the selection's
        moment is isotropic there. A random sign of every row makes it uncorrelated with the rest. The rows are not
        scaled to one length again: what is outside the directions would then count too much.
        """
        if self.rows.d < 2 * DIRECTIONS or self.rest.any():
            return self
        directions = self.rows.principal_directions(DIRECTIONS - 1, generator)
        signs = torch.randint(0, 2, (self.rows.n,), generator=generator).to(self.rows.device) * 2 - 1
        factors = signs / (self.rows.d - directions.shape[1]) ** 0.25
        return Disf(self.rows.in_directions(directions, self.kernel.sqrt(), factors), self.budget)
