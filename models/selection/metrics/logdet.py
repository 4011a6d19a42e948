"""`logdet`: the volume that the selected documents span, on a logarithmic scale."""

from collections.abc import Callable

import torch
from torch import Tensor

from fineweb_mask.models.selection.metrics.moment import SwapModel
from fineweb_mask.models.selection.metrics.spectral import SpectralGains, SpectralMetric


class LogDet(SpectralMetric):
    """D = log det(I + d rho), rho = sum_i m_i x_i x_i^T / K (ours as a metric; Bayesian D-optimal design).

    rho has trace 1, so a mean eigenvalue of d rho is 1, like those of I: a direction counts once it holds about 1/d of
    the selection, and more of it counts ever less. Rows are not centred: a direction that all documents share is one of
    d, and its logarithm saturates.
    """

    def of_matrix(self, matrix: Tensor) -> Tensor:
        """Compute the log determinant."""
        shifted = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device) + self.dimensions * matrix
        found: Tensor = 2 * torch.linalg.cholesky(shifted).diagonal().log().sum()
        return found

    def matrix_slopes(self, moment: Tensor, budget: float) -> Tensor:
        """Compute d/K (I + d rho)^-1."""
        return torch.cholesky_inverse(self._factor(moment, budget)) * (self.dimensions / budget)

    def height(self, moment: Tensor, budget: float) -> float:
        """Compute D - <slopes, moment>."""
        at_moment = self.of_matrix(moment / budget)
        return float(at_moment - (self.slopes(moment, budget) * moment).sum())

    def along(self, moment: Tensor, way: Tensor, budget: float) -> Callable[[float], float]:
        """Differentiate sum_j log(1 + share * mu_j), with mu the eigenvalues of the way relative to I + d rho."""
        relative = self._relative(moment, way, budget)
        mu = torch.cat([torch.linalg.eigvalsh(relative), relative[-1, -1].expand(self.copies - 1)])
        return lambda share: float((mu / (1 + share * mu)).sum())

    def curvature(self, moment: Tensor, way: Tensor, budget: float) -> float:
        """Sum mu_j^2."""
        return float(self._relative(moment, way, budget).square().sum())

    def swap_model(self, mask: Tensor, weight: float) -> SwapModel:
        """Describe swaps by the exact worths (matrix determinant lemma) and the second derivative."""
        slopes = self.slopes(self.moment(mask), float(self.size(mask)))
        q = self.rows.quadratic(slopes)
        worth = torch.where(mask, -torch.log1p(-q.clamp(max=1 - 1e-6)), torch.log1p(q))

        def cross(pool: Tensor) -> Tensor:
            x = self.rows.take(pool)
            return (x @ slopes.float() @ x.T).square_().mul_(weight)

        return SwapModel(worth.mul_(weight), cross)

    def gains(self, budget: float, weight: float) -> SpectralGains:
        """Return the marginal gains of weight * D, for an empty selection."""
        scale = torch.tensor([float(self.dimensions)], dtype=torch.float64)
        return SpectralGains(self, budget, scale, torch.tensor([weight], dtype=torch.float64))

    def _factor(self, moment: Tensor, budget: float) -> Tensor:
        eye = torch.eye(len(moment), dtype=moment.dtype, device=moment.device)
        factor: Tensor = torch.linalg.cholesky(eye + moment * (self.dimensions / budget))
        return factor

    def _relative(self, moment: Tensor, way: Tensor, budget: float) -> Tensor:
        factor = self._factor(moment, budget)
        half = torch.linalg.solve_triangular(factor, way * (self.dimensions / budget), upper=False)
        relative: Tensor = torch.linalg.solve_triangular(factor, half.T, upper=False)
        return relative
