"""`disf`: minus the norm of the second moment, which is least if the selection covers all directions evenly."""

import torch
from torch import Tensor

from fineweb_mask.models.selection.budget import Budget
from fineweb_mask.models.selection.metrics.base import Effort
from fineweb_mask.models.selection.metrics.moment import MomentMetric
from fineweb_mask.models.selection.neighbours import Neighbours
from fineweb_mask.models.selection.rows import Rows

DIRECTIONS = 128  # principal directions of the coarse metric


class Disf(MomentMetric):
    """Minus the Frobenius norm of the selection's second moment (paper: DiSF).

    D = -||C||_F with C = sum_i m_i z_i z_i^T / (K - 1). z is standardised once by the block's mean and standard
    deviation, and scaled to length sqrt(d) (ours: this makes D concave). The published code standardises by the
    selected documents, where tr C is d as well. With a free trace, the least norm would be that of documents near the
    mean. For K = 1 the divisor is 1.

    For a budget of tokens B with costs c (ours), C = sum_i m_i c_i z_i z_i^T / B.
    """

    power = 0.5
    effort = Effort(32, 0.5, 0.97)  # a step costs O(n d^2): fewer of them

    def __init__(
        self,
        rows: Rows,
        budget: Budget,
        lists: Neighbours | None = None,  # noqa: ARG002 - of others
        standard: Tensor | None = None,
    ) -> None:
        rows = rows.standardised(standard)
        self.prepare(rows, budget, rows.square_norms().square_())

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
        if self.rows.d < 2 * DIRECTIONS or self.rest is not None:
            return self
        directions = self.rows.principal_directions(DIRECTIONS - 1, generator)
        signs = torch.randint(0, 2, (self.rows.n,), generator=generator).to(self.rows.device) * 2 - 1
        factors = signs / (self.rows.d - directions.shape[1]) ** 0.25
        rows = self.rows.in_directions(directions, self.kernel.sqrt(), factors)
        metric = object.__new__(Disf)
        metric.prepare(rows, self.budget, rows.square_norms().square_())
        return metric
