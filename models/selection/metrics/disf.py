"""`disf`: minus the norm of the second moment, which is least if the selection covers all directions evenly."""

import torch
from torch import Tensor

from fineweb_mask.models.selection.metrics.base import Effort
from fineweb_mask.models.selection.metrics.kernel import KernelMetric
from fineweb_mask.models.selection.rows import Rows, Standard


class Disf(KernelMetric):
    """Minus the Frobenius norm of the selection's second moment (paper: DiSF).

    D = -||C||_F with C = sum_i m_i z_i z_i^T / (K - 1). z is standardised once by the block's mean and standard
    deviation, and scaled to length sqrt(d) (ours: this makes D concave). The published code standardises by the
    selected documents, where tr C is d as well. With a free trace, the least norm would be that of documents near the
    mean. For K = 1 the divisor is 1.

    With masses a (a budget of tokens; ours), C = sum_i m_i a_i z_i z_i^T / sum_i m_i a_i.
    """

    effort = Effort(32, 0.008, 0.45, 0.97)  # a step costs O(n d^2): fewer and longer ones

    def __init__(self, rows: Rows, masses: Tensor | None = None, standard: Standard | None = None) -> None:
        self.rows, self.masses = rows.standardised(standard), masses
        if masses is not None:
            self.rows = self.rows.times(masses.sqrt())
        self.diagonal = self.rows.square_norms().square_()

    def value(self, masks: Tensor) -> Tensor:
        """Evaluate masks (G, n) by the smaller of Z^T Z (d x d) and Z Z^T (K x K) of each: (G,) float64."""
        squares = []
        for chosen in _selected(masks):
            if len(chosen) < self.rows.d:
                z = self.rows.take(chosen)
                gram = z @ z.T
            else:
                gram = self.rows.second_moment(chosen)
            squares.append(torch.linalg.vector_norm(gram, dtype=torch.float64).square())
        return self.outer(torch.stack(squares), self.size(masks))

    def moment(self, weights: Tensor) -> Tensor:
        """Sum the outer products under weights (n,): (d, d) float64."""
        return self.rows.second_moment(weights.nonzero()[:, 0], weights)

    def scores(self, moment: Tensor) -> Tensor:
        """Compute z_i^T M z_i for a moment M (d, d): (n,) float32."""
        return self.rows.quadratic(moment)

    def kernel_of(self, products: Tensor) -> Tensor:
        """Square the inner products."""
        return products.square_()

    def outer(self, v: Tensor, budget: float | Tensor) -> Tensor:
        """Compute -||C||_F from v = ||(K - 1) C||_F^2."""
        if self.masses is not None:
            return -v.sqrt() / torch.as_tensor(budget, dtype=torch.float64, device=v.device)
        divisor = torch.as_tensor(budget - 1, dtype=torch.float64, device=v.device).clamp(min=1)
        return -v.sqrt() / divisor

    def slope(self, v: float, budget: float) -> float:
        """Compute 1 / (2 (K - 1) sqrt(v)); 0 for v = 0."""
        divisor = max(budget - 1, 1) if self.masses is None else budget
        return float(1 / (2 * divisor * v**0.5)) if v > 0 else 0.0

    def height(self, moment: Tensor, budget: float) -> float:  # noqa: ARG002 - none at all
        """Return 0: a norm's tangents all go through the origin."""
        return 0.0

    def directions(self, count: int, generator: torch.Generator) -> Tensor | None:
        """Compute the principal directions that an approximation in `count` keeps, (d, count - 1), or None for all."""
        return None if self.rows.d < 2 * count else self.rows.principal_directions(count - 1, generator)

    def reduced(self, count: int, generator: torch.Generator) -> "Disf":
        """Approximate D in the principal directions, where there are much more than `count`: O(count^2) per row."""
        directions = self.directions(count, generator)
        if directions is None:
            return self
        signs = torch.randint(0, 2, (self.rows.n,), generator=generator, device=self.rows.device) * 2 - 1
        return self.in_directions(directions, signs)

    def in_directions(self, directions: Tensor, signs: Tensor) -> "Disf":
        """Keep the rows' parts in orthonormal directions (d, r); all others become one of equal variance.

        This is exact for their share of ||C||_F if the selection's moment is isotropic there. A random sign of every
        row, (n,), makes it uncorrelated with the rest. The rows are not scaled to one length again: what is outside the
        directions would then count too much.
        """
        metric = object.__new__(Disf)
        metric.masses = self.masses
        turned = (self.rows.d - directions.shape[1]) ** 0.25
        metric.rows = self.rows.in_directions(directions, self.diagonal.sqrt(), signs / turned)
        metric.diagonal = metric.rows.square_norms().square_()
        return metric

    def tangent_gradient(self, moment: Tensor, reached: Tensor, budget: float) -> Tensor:
        """Differentiate the tangent with respect to its moment (d, d); only the moment's direction matters."""
        v = moment.square().sum()
        across = reached - moment * ((moment * reached).sum() / v.clamp(min=1e-300))
        return across * (-2 * self.slope(float(v), budget))


def _selected(masks: Tensor) -> tuple[Tensor, ...]:
    """Return the selected documents of every mask (G, n), with one transfer from the device for all masks."""
    counts = masks.sum(1).tolist()
    return torch.split(masks.nonzero()[:, 1], counts)
