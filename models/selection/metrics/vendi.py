"""`vendi`: the entropy of the selection's spectrum, the logarithm of how many directions it holds evenly."""

import math

import torch
from torch import Tensor

from fineweb_mask.models.selection.metrics.moment import SwapModel
from fineweb_mask.models.selection.metrics.spectral import SpectralGains, SpectralMetric

FLOOR = 1e-6  # share of the uniform spectrum mixed into a moment where a logarithm needs no zeros
STEP = 2.0  # of log t in the integral that greedy's gains come from


class Vendi(SpectralMetric):
    """D = -sum_j lambda_j log lambda_j, lambda the eigenvalues of rho: the log of the Vendi score (arXiv 2210.02410).

    For any sigma of trace 1, D(m) <= -tr(rho log sigma) (Klein's inequality): that is the tangent at sigma, here at
    (1 - FLOOR) rho + FLOOR I / d, which has no zero eigenvalue.
    """

    resolution = 100 * FLOOR  # a smaller range is that of the tangent, and of rounding

    def of_matrix(self, matrix: Tensor) -> Tensor:
        """Compute the entropy of the eigenvalues."""
        entropy: Tensor = torch.special.entr(torch.linalg.eigvalsh(matrix).clamp(min=0)).sum()
        return entropy

    def matrix_slopes(self, moment: Tensor, budget: float) -> Tensor:
        """Compute -(log sigma + I) / K."""
        values, vectors = self._mixed(moment, budget)
        slopes: Tensor = (vectors * -(values.log() + 1)) @ vectors.T / budget
        return slopes

    def height(self, moment: Tensor, budget: float) -> float:
        """Compute the trace of sigma, 1."""
        return (1 - FLOOR) * float(moment.trace()) / budget + FLOOR

    def curvature(self, moment: Tensor, way: Tensor, budget: float) -> float:
        """Sum the squares of the way in the eigenbasis by the divided differences of the logarithm."""
        values, vectors = self._mixed(moment, budget)
        difference = values[:, None] - values
        close = difference.abs() < 1e-9 * (values[:, None] + values)
        mean = (values[:, None] + values) / 2
        divided = torch.where(close, 1 / mean, (values.log()[:, None] - values.log()) / difference)
        return float((divided * (vectors.T @ way @ vectors).square()).sum()) / budget**2

    def swap_model(self, mask: Tensor, weight: float) -> SwapModel:
        """Describe swaps by differences of -lambda log lambda over 1/K along each eigenvector.

        A gradient would be infinite at an eigenvalue of 0. What one document takes from another's worth is the second
        derivative, with the divided differences of the logarithm bounded by the geometric mean, which factorises.
        """
        step = 1 / float(self.size(mask))
        values, vectors = torch.linalg.eigh(self.moment(mask) * step)
        values = values.clamp(min=FLOOR * step)
        entropy = torch.special.entr(values)
        less = values.clamp(max=step)
        added = (torch.special.entr(values + step) - entropy) / step
        dropped = (entropy - torch.special.entr(values - less)) / less
        worth = self.rows.quadratic((vectors * added) @ vectors.T)
        selected = mask.nonzero()[:, 0]
        worth[selected] = self.rows.quadratic((vectors * dropped) @ vectors.T, selected)
        root = ((vectors * (values + step / 2) ** -0.5) @ vectors.T).float()

        def cross(pool: Tensor) -> Tensor:
            x = self.rows.take(pool)
            return torch.square(x @ root @ x.T).mul_(weight * step**2)

        return SwapModel(worth.mul_(weight * step), cross)

    def gains(self, budget: float, weight: float) -> SpectralGains:
        """Return the marginal gains of weight * D, for an empty selection.

        -lambda log lambda = integral over t > 0 of log(1 + lambda / t) - lambda / (1 + t), minus lambda: a sum of log
        determinants, by the trapezoidal rule in log t, to about 0.001 / K.
        """
        scales = torch.arange(-9 - math.log(budget), 5 + STEP, STEP, dtype=torch.float64).neg().exp()  # 1 / t
        linear = -1 - float((STEP / (1 + scales)).sum())
        return SpectralGains(self, budget, scales, weight * STEP / scales, weight * linear)

    def _mixed(self, moment: Tensor, budget: float) -> tuple[Tensor, Tensor]:
        """Decompose sigma: eigenvalues (d,) and eigenvectors (d, d)."""
        values, vectors = torch.linalg.eigh(moment / budget)
        return (1 - FLOOR) * values.clamp(min=0) + FLOOR / self.dimensions, vectors
