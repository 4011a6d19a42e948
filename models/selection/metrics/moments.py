"""`pairwise` and `disf`: concave functions of the mean moment of what is selected."""

from abc import abstractmethod
from typing import ClassVar, Self

import torch
from torch import Tensor

from fineweb_mask.models.selection.budget import Budget
from fineweb_mask.models.selection.metrics.base import Bounded, Effort
from fineweb_mask.models.selection.neighbours import Neighbours
from fineweb_mask.models.selection.rows import Rows

LEAST_SQUARE = 1e-30  # of a moment that other numbers are divided by


class MomentMetric(Bounded):
    """D = -f ||M||^(2 p) + sum_i credit_i m_i, with the mean moment M = sum_i s_i m_i phi_i of what is selected.

    s are the budget's shares, the power p is 1 or 1/2, and phi_i is x_i for `pairwise`, z_i z_i^T for `disf`. The
    factor f is K / (K - 1) for a budget of K documents, which makes D the paper's mean over pairs; for tokens it is 1.
    The credit takes the pairs of documents with themselves out of the mean.

    D can be that of some documents beside others whose selection is known: `rest` is then the others' part of the mean
    moment, and the budget that of all.
    """

    power: ClassVar[float]
    order: ClassVar[int]  # of the moment: phi_i has d^order numbers
    is_of_pairs: ClassVar[bool] = False  # whether there is a credit

    def __init__(
        self,
        rows: Rows,
        budget: Budget,
        lists: Neighbours | None = None,  # noqa: ARG002 - of others
        *,
        rest: Tensor | None = None,
        standard: Tensor | None = None,  # noqa: ARG002 - of others
    ) -> None:
        """Measure rows (n, d) as they are."""
        self.rows, self.shares, size = rows, budget.shares, budget.limit
        self.rest = torch.zeros((), dtype=torch.float64, device=rows.device) if rest is None else rest
        self.factor = size / (size - 1) if budget.counts_documents and size > 1 else 1.0
        self.kernel = rows.square_norms() ** self.order  # ||phi_i||^2, (n,) float32
        self.credit = self.shares.square() * (self.factor * self.is_of_pairs)  # (n,) float32

    @abstractmethod
    def sum_moments(self, weights: Tensor) -> Tensor:
        """Sum weights_i phi_i, weights (n,): float64."""

    @abstractmethod
    def scores(self, moment: Tensor) -> Tensor:
        """Compute <phi_i, M> of all documents: (n,) float32."""

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
        return self.outer(squares) + (masks * self.credit).sum(1, dtype=torch.float64)

    def gradient(self, inclusion: Tensor) -> Tensor:
        """Differentiate D at the moment of the probabilities (n,): (n,) float32."""
        return self._gradient_at(self.moment(inclusion))

    def _gradient_at(self, moment: Tensor) -> Tensor:
        slope = self.slope(float(moment.square().sum()))
        return (self.scores(moment) * self.shares).mul_(-2 * slope).add_(self.credit)

    def gains(self, mask: Tensor) -> Tensor:
        """Return what adding each document brings, or dropping it costs: (n,) float32."""
        moment, sign = self.moment(mask), torch.where(mask, -1.0, 1.0)
        v = moment.square().sum()
        change = self.shares * (2 * sign * self.scores(moment) + self.shares * self.kernel)
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
        return float(self.outer(v) + 2 * self.slope(float(v)) * own), self._gradient_at(place).double()

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
        v = self.rest.square().sum() + 2 * size / n * (self.rest * everyone).sum()
        v += size * own / n + size * (size - 1) * pairs
        return float(self.outer(v)) + size / n * float(self.credit.sum(dtype=torch.float64))

    def among(self, index: Tensor, part: Budget, whole: Budget) -> Self:  # noqa: ARG002 - of others
        """Return the metric of some documents, index (b,)."""
        return type(self)(self.rows.only(index), part)


class Pairwise(MomentMetric):
    """Minus the mean cosine over ordered pairs of selected documents (paper: Pair_simi).

    D = -(||sum_i m_i x_i||^2 - K) / (K (K - 1)) for unit rows; a selection of one has no pairs and D = 0.

    For a budget of tokens B with costs c (ours), D = -(||sum_i m_i c_i x_i||^2 - sum_i m_i c_i^2) / B^2: minus the mean
    cosine between the documents of two tokens drawn at random, where two of one document count 0.
    """

    power = 1.0
    order = 1
    is_of_pairs = True

    def value(self, masks: Tensor) -> Tensor:
        """Evaluate masks (G, n) by one matrix product: (G,) float64."""
        if len(masks) == 1:
            return super().value(masks)
        sums = self.rows.weighted_sum(masks * self.shares) + self.rest
        return self.outer(sums.square().sum(1)) + masks.double() @ self.credit.double()

    def sum_moments(self, weights: Tensor) -> Tensor:
        """Sum the rows under weights (n,): (d,) float64."""
        return self.rows.weighted_sum(weights)

    def scores(self, moment: Tensor) -> Tensor:
        """Compute <x_i, M>: (n,) float32."""
        return self.rows.matrix @ moment.float()


class Disf(MomentMetric):
    """Minus the Frobenius norm of the second moment, which is least if all directions are covered evenly (paper: DiSF).

    D = -||C||_F with C = sum_i m_i z_i z_i^T / (K - 1). z is standardised once by the block's mean and standard
    deviation, and scaled to length sqrt(d) (ours: this makes D concave). The published code standardises by the
    selected documents, where tr C is d as well. With a free trace, the least norm would be that of documents near the
    mean. For K = 1 the divisor is 1.

    For a budget of tokens B with costs c (ours), C = sum_i m_i c_i z_i z_i^T / B.
    """

    power = 0.5
    order = 2
    relaxation = 16  # a step costs O(n d^2): fewer of them, as with the next
    effort = Effort(32, 0.5, 0.97)

    def __init__(
        self,
        rows: Rows,
        budget: Budget,
        lists: Neighbours | None = None,
        *,
        rest: Tensor | None = None,
        standard: Tensor | None = None,
    ) -> None:
        """Measure unit rows (n, d); `standard` is what a whole is standardised by, of which they are a part."""
        self.unit, self.standard = rows, rows.standard() if standard is None else standard
        super().__init__(rows.standardised(self.standard), budget, lists, rest=rest)

    def among(self, index: Tensor, part: Budget, whole: Budget) -> "Disf":  # noqa: ARG002 - of others
        """Return the metric of some documents, index (b,), standardised as all are."""
        return Disf(self.unit.only(index), part, standard=self.standard)

    def sum_moments(self, weights: Tensor) -> Tensor:
        """Sum the outer products under weights (n,): (d, d) float64."""
        return self.rows.second_moment(weights)

    def scores(self, moment: Tensor) -> Tensor:
        """Compute z_i^T M z_i: (n,) float32."""
        return self.rows.quadratic(moment)
