"""`pairwise`: minus the mean cosine between selected documents."""

import torch
from torch import Tensor

from fineweb_mask.models.selection.metrics.kernel import KernelMetric
from fineweb_mask.models.selection.rows import Rows, Standard


class Pairwise(KernelMetric):
    """Minus the mean cosine over ordered pairs of selected documents (paper: Pair_simi).

    D = -(||sum_i m_i x_i||^2 - K) / (K (K - 1)) for unit rows; a selection of one has no pairs and D = 0.

    With masses a (a budget of tokens; ours), D = -(||sum_i m_i a_i x_i||^2 - sum_i m_i a_i^2) / (sum_i m_i a_i)^2:
    minus the mean cosine between the documents of two tokens drawn at random, where two of one document count 0.
    """

    linear_in_v = True
    swap_pool = 512  # annealing leaves so few documents undecided

    def __init__(
        self,
        rows: Rows,
        masses: Tensor | None = None,
        standard: Standard | None = None,  # noqa: ARG002 - for others
    ) -> None:
        self.rows, self.masses = rows, masses
        self.diagonal = torch.ones(rows.n, device=rows.device)
        if masses is not None:
            self.rows, self.diagonal = rows.times(masses), masses.square()
            self.credit = self.diagonal

    def value(self, masks: Tensor) -> Tensor:
        """Evaluate masks (G, n) by one matrix product: (G,) float64."""
        sums = self.total(self.rows.weighted_sum(masks) if len(masks) > 1 else self.rows.weighted_sum(masks[0])[None])
        sizes = self.size(masks)
        value = self.outer(sums.square().sum(1), sizes)
        return value if self.credit is None else value + masks.double() @ self.credit.double() / sizes.square()

    def moment(self, weights: Tensor) -> Tensor:
        """Sum the rows under weights (n,): (d,) float64."""
        return self.total(self.rows.weighted_sum(weights))

    def scores(self, moment: Tensor) -> Tensor:
        """Compute <x_i, s>: (n,) float32."""
        return self.rows.dot(moment.float())

    def kernel_of(self, products: Tensor) -> Tensor:
        """Return the inner products themselves, the cosines."""
        return products

    def outer_of(self, v: Tensor, size: float | Tensor) -> Tensor:
        """Subtract the K diagonal terms from v and average over the pairs."""
        size = torch.as_tensor(size, dtype=torch.float64, device=v.device)
        if self.masses is not None:
            return -v / size.square()
        pairs = size * (size - 1)
        return torch.where(size > 1, (size - v) / pairs.clamp(min=1), 0.0)

    def slope_of(self, v: float, size: float) -> float:  # noqa: ARG002 - linear in v
        """Compute 1 / (K (K - 1)); with masses 1 / mass^2."""
        if self.masses is not None:
            return 1 / size**2
        return 1 / (size * (size - 1)) if size > 1 else 0.0

    def tangent_gradient(self, moment: Tensor, reached: Tensor, budget: float) -> Tensor:
        """Differentiate the tangent with respect to its moment: (d,)."""
        return (moment - reached) * (2 * self.slope(0.0, budget))
