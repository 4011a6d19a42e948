"""Share the code of `logdet` and `vendi`: concave functions of the eigenvalues of the selection's second moment."""

from abc import abstractmethod
from collections.abc import Callable
from copy import copy
from typing import Self

import torch
from torch import Tensor

from fineweb_mask.models.selection.metrics.base import Effort
from fineweb_mask.models.selection.metrics.moment import MomentMetric
from fineweb_mask.models.selection.rows import Rows


class SpectralMetric(MomentMetric):
    """A metric D = sum_j f(lambda_j) over the eigenvalues of rho = sum_i m_i x_i x_i^T / K.

    x are the unit rows as they are, so the trace of rho is 1. f is concave with f(0) = 0, so that the d x d matrix rho
    and the K x K matrix of the selected documents' cosines, divided by K, have the same value.

    With masses a (a budget of tokens), rho = sum_i m_i a_i x_i x_i^T / sum_i m_i a_i.
    """

    effort = Effort(32, 0.008, 0.45, 0.97)  # a step costs O(n d^2): fewer and longer ones
    has_directions = True
    copies = 1  # directions that the last dimension stands for

    def __init__(self, rows: Rows, masses: Tensor | None = None) -> None:
        self.rows = rows if masses is None else rows.times(masses.sqrt())
        self.masses = masses

    @property
    def dimensions(self) -> int:
        """Directions of rho."""
        return self.rows.d - 1 + self.copies

    @abstractmethod
    def of_matrix(self, matrix: Tensor) -> Tensor:
        """Compute D from rho or from the cosines divided by K: a float64 scalar."""

    @abstractmethod
    def matrix_slopes(self, moment: Tensor, budget: float) -> Tensor:
        """Apply f' to the eigenvalues of rho, divided by K: (d, d) float64."""

    @abstractmethod
    def curvature(self, moment: Tensor, way: Tensor, budget: float) -> float:
        """Compute minus the second derivative of F along a way (d, d)."""

    def value(self, masks: Tensor) -> Tensor:
        """Evaluate masks (G, n) by the smaller of the two matrices of each: (G,) float64."""
        values = []
        for mask, size in zip(masks, self.size(masks), strict=True):
            chosen = mask.nonzero()[:, 0]
            if len(chosen) < self.rows.d:
                x = self.rows.take(chosen)
                gram = x @ x.T
            else:
                gram = self.rows.second_moment_of(chosen)
            values.append(self.of_matrix(gram.double() / size))
        return torch.stack(values)

    def of_moment(self, moment: Tensor, budget: float) -> Tensor:
        """Compute F, a float64 scalar."""
        return self.of_matrix(moment / budget)

    def moment(self, weights: Tensor) -> Tensor:
        """Sum the outer products under weights (n,): (d, d) float64, K rho."""
        moment = self.rows.second_moment(weights)
        if self.copies > 1:  # directions of which only the sum of squares is known
            moment[-1, :-1] = moment[:-1, -1] = 0.0
        return moment

    def slopes(self, moment: Tensor, budget: float) -> Tensor:
        """Differentiate F with respect to the moment: (d, d) float64."""
        slopes = self.matrix_slopes(moment, budget)
        slopes[-1, -1] *= self.copies
        return slopes

    def gradient_at(self, moment: Tensor, budget: float, weight: float = 1.0) -> Tensor:
        """Compute weight * x_i^T slopes x_i: (n,) float32."""
        return self.rows.quadratic(self.slopes(moment, budget)).mul_(weight)

    def along(self, moment: Tensor, way: Tensor, budget: float) -> Callable[[float], float]:
        """Differentiate F along the way."""
        return lambda share: float((self.slopes(moment + share * way, budget) * way).sum())

    def tangent(self, inclusion: Tensor, budget: float, weight: float) -> "SpectralTangent":
        """Return the tangent of weight * D at the moment of the inclusion probabilities (n,)."""
        return SpectralTangent(self, self.moment(inclusion), budget, weight)

    def worth(self, mask: Tensor) -> Tensor:
        """Compute the marginal worth of each document, (n,) float32."""
        return self.swap_model(mask, 1.0).worth

    def restrict(self, index: Tensor) -> Self:
        """Return the metric over a batch (b,)."""
        batch = copy(self)
        batch.rows = Rows(self.rows.take(index))
        batch.masses = None if self.masses is None else self.masses[index]
        return batch

    def in_directions(self, directions: Tensor, signs: Tensor) -> Self:  # noqa: ARG002 - squares have none
        """Keep the rows' parts in orthonormal directions (d, r); all others are of equal eigenvalue.

        The last dimension holds what a row has outside of them, and stands for so many directions.
        """
        metric = copy(self)
        metric.copies = self.rows.d - directions.shape[1]
        everyone = torch.ones(self.rows.n, device=self.rows.device)
        whole = everyone if self.masses is None else self.masses
        metric.rows = self.rows.in_directions(directions, whole, everyone * metric.copies**-0.5)
        return metric


class SpectralTangent:
    """The tangent of a weighted spectral metric at a moment that mixes those of selections."""

    def __init__(self, metric: SpectralMetric, moment: Tensor, budget: float, weight: float) -> None:
        self.metric, self.moment, self.budget, self.weight = metric, moment, budget, weight
        self.effort = metric.effort
        self.of_shares: bool | None = None if metric.masses is None else True

    def evaluate(self) -> tuple[float, Tensor]:
        """Return the height and the slope of every document, (n,) float64."""
        slopes = self.metric.gradient_at(self.moment, self.budget, self.weight).double()
        return self.weight * self.metric.height(self.moment, self.budget), slopes

    def descend(self, mask: Tensor, fall: float) -> None:
        """Move the moment towards the mask's: it stays positive semidefinite."""
        way = self.metric.moment(mask) - self.moment
        curvature = self.weight * self.metric.curvature(self.moment, way, self.budget)
        if curvature > 0 and fall > 0:
            self.moment = self.moment + min(fall / curvature, 1.0) * way


class SpectralGains:
    """The gains of sum_k share_k log det(I + scale_k rho) + linear * tr rho, with rho divided by the full budget.

    Each pick is an update of rank one of every term, in one pass over the rows: O(n d) for few terms.
    """

    def __init__(
        self, metric: SpectralMetric, budget: float, scales: Tensor, shares: Tensor, linear: float = 0.0
    ) -> None:
        self.rows = rows = metric.rows
        self.linear = linear / budget * (1.0 if metric.masses is None else metric.masses.double())
        self.shares, self.per_document = (part.to(rows.device) for part in (shares, scales / budget))
        eye = torch.eye(rows.d, dtype=torch.float64, device=rows.device)
        self.inverses = eye.repeat(len(scales), 1, 1)  # of I + scale_k rho
        squares = eye.new_ones(rows.n) if metric.masses is None else metric.masses.double()
        self.quadratics = squares[:, None].repeat(1, len(scales))  # x_i^T inverse x_i

    def gains(self) -> Tensor:
        """Return the gain of adding each document, (n,) float32."""
        return (torch.log1p(self.per_document * self.quadratics) @ self.shares + self.linear).float()

    def add(self, document: int) -> None:
        """Add a document."""
        row = self.rows.take(torch.tensor([document], device=self.rows.device))[0].double()
        ways = self.inverses @ row
        shrinking = self.per_document / (1 + self.per_document * (ways @ row))
        self.quadratics -= shrinking * self.rows.dot(ways.T.float()).double().square_()
        self.inverses -= shrinking[:, None, None] * ways[:, :, None] * ways[:, None, :]
