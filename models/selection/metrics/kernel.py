"""What `pairwise` and `disf` have in common: they are concave in one small moment of the selection."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

import torch

from fineweb_mask.models.selection.metrics.base import BuiltInMetric
from fineweb_mask.models.selection.rows import Rows

if TYPE_CHECKING:
    from torch import Tensor


class KernelMetric(BuiltInMetric):
    """A metric that sees the selection only through v = sum_ij m_i m_j kernel(i, j).

    The sum is a squared norm of a small moment: of s (d numbers) for `pairwise`, of C (d x d) for `disf`.
    D is a concave, falling function of the moment.
    """

    rows: Rows
    diagonal: Tensor  # (n,) float32, kernel(i, i)
    matrix: Tensor | None = None  # (n, n) float32, kernel(i, j), where several solves share it

    @abstractmethod
    def moment(self, weights: Tensor) -> Tensor:
        """Sum the documents' feature maps under weights or of a mask, (n,): float64."""

    @abstractmethod
    def scores(self, moment: Tensor) -> Tensor:
        """Sum kernel(i, j) w_j over j from the moment of w: (n,) float32."""

    @abstractmethod
    def kernel(self, left: Tensor, right: Tensor) -> Tensor:
        """Evaluate the kernel between rows (a, d) and (b, d): (a, b) float32."""

    @abstractmethod
    def kernel_with(self, row: Tensor) -> Tensor:
        """Evaluate the kernel between all documents and one row (d,): (n,) float32."""

    @abstractmethod
    def moment_of(self, features: Tensor, weights: Tensor) -> Tensor:
        """Sum the feature maps of given rows (a, d) under weights (a,): float64."""

    @abstractmethod
    def scores_of(self, features: Tensor, moment: Tensor) -> Tensor:
        """Give the scores of given rows (a, d): (a,) float32."""

    @abstractmethod
    def outer(self, v: Tensor, budget: float | Tensor) -> Tensor:
        """Give D from v, for a selection of `budget` documents."""

    @abstractmethod
    def slope(self, v: float, budget: float) -> float:
        """Give -dD/dv, at least 0."""

    @abstractmethod
    def tangent_gradient(self, moment: Tensor, reached: Tensor, budget: float) -> Tensor:
        """Differentiate D's tangent at a moment, evaluated at a reached one, by the former: its shape."""

    def relaxed(self, inclusion: Tensor) -> tuple[float, Tensor]:
        """See the base class: D as a function of the moment is concave in the inclusion."""
        moment = self.moment(inclusion)
        v = moment.square().sum()
        budget = float(inclusion.sum(dtype=torch.float64))
        gradient = self.scores(moment).double().mul_(-2 * self.slope(float(v), budget))
        return float(self.outer(v, budget)), gradient

    def worth(self, mask: Tensor) -> Tensor:
        """See the base class; through the tangent of D at the present v."""
        moment = self.moment(mask)
        slope = self.slope(float(moment.square().sum()), float(mask.sum()))
        own = torch.where(mask, self.diagonal, -self.diagonal)
        return (2 * self.scores(moment)).sub_(own).mul_(-slope)

    def random_value(self, budget: int) -> float:
        """Give D at the expected v of a uniform random subset."""
        n = self.rows.n
        own = float(self.diagonal.sum(dtype=torch.float64))
        everyone = self.moment(torch.ones(n, device=self.rows.device))
        pairs = (float(everyone.square().sum()) - own) / max(n * (n - 1), 1)
        v = budget * own / n + budget * (budget - 1) * pairs
        return float(self.outer(torch.tensor(max(v, 0.0), dtype=torch.float64), budget))

    def hold_matrix(self) -> None:
        """Evaluate the kernel between all documents once, for every greedy pick from now on: 4 n^2 bytes."""
        if self.matrix is None:
            everyone = self.rows.block(slice(None))
            self.matrix = self.kernel(everyone, everyone)

    def _batch(self, index: Tensor) -> KernelMetric:
        batch = object.__new__(type(self))
        batch.rows = Rows(self.rows.take(index))
        batch.diagonal = self.diagonal[index]
        return batch
