"""`disf`: how evenly the selected documents spread over all directions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fineweb_mask.models.selection.metrics.kernel import KernelMetric
from fineweb_mask.models.selection.rows import Rows

if TYPE_CHECKING:
    from torch import Tensor

PCA_ROWS = 8192  # rows from which the principal directions are taken


class Disf(KernelMetric):
    """Minus the Frobenius norm of the selection's second moment (paper: DiSF).

    D = -||C||_F with C = sum_i m_i z_i z_i^T / (K - 1), z standardised once by the block's mean and deviation
    (ours: that makes D concave). A selection of one divides by 1.
    """

    name = "disf"

    def __init__(self, rows: Rows) -> None:
        self.rows = rows.standardised()
        self.diagonal = torch.cat([self.rows.block(part).square().sum(1).square() for part in self.rows.slices()])

    def value(self, masks: Tensor) -> Tensor:
        """See the base class: per mask the smaller of Z^T Z (d x d) and Z Z^T (K x K)."""
        squares = []
        for chosen in _selected(masks):
            z = self.rows.take(chosen)
            gram = z @ z.T if len(z) < self.rows.d else z.T @ z
            squares.append(torch.linalg.vector_norm(gram, dtype=torch.float64).square())
        return self.outer(torch.stack(squares), masks.sum(1, dtype=torch.float64))

    def gradient(self, inclusion: Tensor) -> Tensor:
        """See the base class: -(z_i^T C z_i) / ((K - 1) ||C||_F)."""
        return self.relaxed(inclusion)[1].float()

    def restrict(self, index: Tensor) -> KernelMetric:
        """See the base class: the batch keeps the block's standardising."""
        return self._batch(index)

    def moment(self, weights: Tensor) -> Tensor:
        """Sum the outer products: (d, d)."""
        return self.rows.second_moment(weights)

    def scores(self, moment: Tensor) -> Tensor:
        """Give z_i^T M z_i."""
        return self.rows.quadratic(moment)

    def moment_of(self, features: Tensor, weights: Tensor) -> Tensor:
        """See the base class."""
        return (features.T @ (features * weights[:, None])).double()

    def scores_of(self, features: Tensor, moment: Tensor) -> Tensor:
        """See the base class."""
        return (features @ moment.float()).mul_(features).sum(1)

    def kernel(self, left: Tensor, right: Tensor) -> Tensor:
        """Give the squared inner products."""
        return (left @ right.T).square_()

    def kernel_with(self, row: Tensor) -> Tensor:
        """See the base class."""
        return self.rows.dot(row).square_()

    def outer(self, v: Tensor, budget: float | Tensor) -> Tensor:
        """Scale the norm of the sum to that of C."""
        divisor = torch.as_tensor(budget - 1, dtype=torch.float64, device=v.device).clamp(min=1)
        return -v.sqrt() / divisor

    def slope(self, v: float, budget: float) -> float:
        """Give 1 / (2 (K - 1) sqrt(v))."""
        return float(1 / (2 * max(budget - 1, 1) * v**0.5)) if v > 0 else 0.0

    def reduced(self, n_directions: int, generator: torch.Generator) -> Disf:
        """Approximate the metric in the principal directions, so that passes cost n_directions^2, not d^2.

        The other directions are taken together as one of equal variances: that is exact for their share of
        ||C||_F if the selection's moment is isotropic there. A random sign keeps it apart from the rest.
        """
        sample = torch.zeros(self.rows.n, device=self.rows.device)
        sample[torch.randperm(self.rows.n, generator=generator, device=sample.device)[:PCA_ROWS]] = 1.0
        vectors = torch.linalg.eigh(self.rows.second_moment(sample)).eigenvectors.float()
        kept = self.rows.dot(vectors[:, -(n_directions - 1) :].contiguous())
        rest = (self.diagonal.sqrt() - kept.square().sum(1)).clamp_(min=0)
        others = rest.sqrt() / (self.rows.d - n_directions + 1) ** 0.25
        sign = torch.randint(0, 2, others.shape, generator=generator, device=others.device) * 2 - 1
        metric = object.__new__(Disf)
        metric.rows = Rows(torch.cat([kept, (others * sign)[:, None]], dim=1))
        metric.diagonal = metric.rows.block(slice(None)).square().sum(1).square()
        return metric

    def tangent_gradient(self, moment: Tensor, reached: Tensor, budget: float) -> Tensor:
        """See the base class; the tangent depends on the moment's direction only."""
        v = moment.square().sum()
        across = reached - moment * ((moment * reached).sum() / v.clamp(min=1e-300))
        return across * (-2 * self.slope(float(v), budget))


def disf_by_selection(rows: Rows, mask: Tensor) -> float:
    """Evaluate DiSF as its published code does, standardising by the selected documents themselves.

    For comparison only: its standardising depends on the selection, so it has no concave relaxation.
    Gives minus the Frobenius norm of the correlation matrix of the rows of a mask (n,).
    """
    z = Rows(rows.take(mask.nonzero()[:, 0])).standardised().block(slice(None))
    gram = z @ z.T if len(z) < rows.d else z.T @ z
    return -float(torch.linalg.vector_norm(gram, dtype=torch.float64)) / max(len(z) - 1, 1)


def _selected(masks: Tensor) -> tuple[Tensor, ...]:
    """List the selected documents of every mask of a group, (G, n) bool, with one transfer for the group."""
    counts = masks.sum(1).tolist()
    return torch.split(masks.nonzero()[:, 1], counts)
