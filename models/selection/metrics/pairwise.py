"""`pairwise`: minus the mean cosine between selected documents."""

import torch
from torch import Tensor

from fineweb_mask.models.selection.budget import Budget
from fineweb_mask.models.selection.metrics.moment import MomentMetric
from fineweb_mask.models.selection.neighbours import Neighbours
from fineweb_mask.models.selection.rows import Rows


class Pairwise(MomentMetric):
    """Minus the mean cosine over ordered pairs of selected documents (paper: Pair_simi).

    D = -(||sum_i m_i x_i||^2 - K) / (K (K - 1)) for unit rows; a selection of one has no pairs and D = 0.

    For a budget of tokens B with costs c (ours), D = -(||sum_i m_i c_i x_i||^2 - sum_i m_i c_i^2) / B^2: minus the mean
    cosine between the documents of two tokens drawn at random, where two of one document count 0.
    """

    power = 1.0

    def __init__(
        self,
        rows: Rows,
        budget: Budget,
        lists: Neighbours | None = None,  # noqa: ARG002 - of others
        standard: Tensor | None = None,  # noqa: ARG002 - of others
    ) -> None:
        self.prepare(rows, budget, torch.ones(rows.n, device=rows.device))

    @property
    def credit(self) -> Tensor:
        """The documents' pairs with themselves, which do not count."""
        return self.shares.square() * self.factor

    def value(self, masks: Tensor) -> Tensor:
        """Evaluate masks (G, n) by one matrix product: (G,) float64."""
        if len(masks) == 1:
            return super().value(masks)
        sums = self.rows.weighted_sum(masks * self.shares)
        sums = sums if self.rest is None else sums + self.rest
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
