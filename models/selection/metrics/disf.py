"""`disf`: minus the norm of the second moment, which is least if the selection covers all directions evenly."""

import torch
from torch import Tensor

from fineweb_mask.models.selection.metrics.base import Effort
from fineweb_mask.models.selection.metrics.kernel import KernelMetric
from fineweb_mask.models.selection.rows import Rows, Standard

FAR = 1e3  # times the largest score: that of documents that are not looked at
NEGLIGIBLE = 1e-6  # share of the largest weight: less counts as 0


class Disf(KernelMetric):
    """Minus the Frobenius norm of the selection's second moment (paper: DiSF).

    D = -||C||_F with C = sum_i m_i z_i z_i^T / (K - 1). z is standardised once by the block's mean and standard
    deviation, and scaled to length sqrt(d) (ours: this makes D concave). The published code standardises by the
    selected documents, where tr C is d as well. With a free trace, the least norm would be that of documents near the
    mean. For K = 1 the divisor is 1.

    With masses a (a budget of tokens; ours), C = sum_i m_i a_i z_i z_i^T / sum_i m_i a_i.
    """

    effort = Effort(32, 0.008, 0.45, 0.97)  # a step costs O(n d^2): fewer and longer ones

    def __init__(
        self,
        rows: Rows,
        masses: Tensor | None = None,
        standard: Standard | None = None,
    ) -> None:
        rows = rows.standardised(standard)
        self.rows, self.masses = rows if masses is None else rows.times(masses.sqrt()), masses
        self.diagonal = self.rows.square_norms().square_()

    @property
    def few(self) -> int:
        """Half as many documents as there are dimensions."""
        return self.rows.d // 2

    def value(self, masks: Tensor) -> Tensor:
        """Evaluate masks (G, n) by the smaller of Z^T Z (d x d) and Z Z^T (K x K) of each: (G,) float64."""
        squares = []
        for chosen in _selected(masks):
            if self.rest is not None:
                gram = self.total(self.rows.second_moment(chosen))
            elif len(chosen) < self.rows.d:
                z = self.rows.take(chosen)
                gram = z @ z.T
            else:
                gram = self.rows.second_moment(chosen)
            squares.append(torch.linalg.vector_norm(gram, dtype=torch.float64).square())
        return self.outer(torch.stack(squares), self.size(masks))

    def moment(self, weights: Tensor) -> Tensor:
        """Sum the outer products under weights (n,): (d, d) float64."""
        if weights.dtype == torch.bool:
            return self.total(self.rows.second_moment(weights.nonzero()[:, 0]))
        counted = (weights.abs() > NEGLIGIBLE * weights.abs().max()).nonzero()[:, 0]
        return self.total(self.rows.second_moment(counted, weights))

    def scores(self, moment: Tensor) -> Tensor:
        """Compute z_i^T M z_i for a moment M (d, d): (n,) float32."""
        return self.rows.quadratic(moment)

    def kernel_of(self, products: Tensor) -> Tensor:
        """Square the inner products."""
        return products.square_()

    def outer_of(self, v: Tensor, size: float | Tensor) -> Tensor:
        """Compute -||C||_F from v = ||(K - 1) C||_F^2."""
        if self.masses is not None:
            return -v.sqrt() / torch.as_tensor(size, dtype=torch.float64, device=v.device)
        divisor = torch.as_tensor(size - 1, dtype=torch.float64, device=v.device).clamp(min=1)
        return -v.sqrt() / divisor

    def slope_of(self, v: float, size: float) -> float:
        """Compute 1 / (2 (K - 1) sqrt(v)); 0 for v = 0."""
        divisor = max(size - 1, 1) if self.masses is None else size
        return float(1 / (2 * divisor * v**0.5)) if v > 0 else 0.0

    def height(self, moment: Tensor, budget: float) -> float:
        """Return 0 where nothing else is selected: a norm's tangents all go through the origin."""
        return 0.0 if self.rest is None else super().height(moment, budget)

    def reduced(self, count: int, generator: torch.Generator) -> "Disf":
        """Approximate D in the principal directions, where there are much more than `count`: O(count^2) per row.

        All other directions become one of equal variance. This is exact for their share of ||C||_F if the selection's
        moment is isotropic there. A random sign of every row makes it uncorrelated with the rest. The rows are not
        scaled to one length again: what is outside the directions would then count too much.
        """
        if self.rows.d < 2 * count or self.rest is not None:
            return self
        directions = self.rows.principal_directions(count - 1, generator)
        signs = torch.randint(0, 2, (self.rows.n,), generator=generator).to(self.rows.device) * 2 - 1
        metric = object.__new__(Disf)
        metric.masses = self.masses
        factors = signs / (self.rows.d - directions.shape[1]) ** 0.25
        metric.rows = self.rows.in_directions(directions, self.diagonal.sqrt(), factors)
        metric.diagonal = metric.rows.square_norms().square_()
        return metric

    def focused(self, index: Tensor) -> "Disf":
        """Return the metric of the same n documents that scores those of index (b,) alone; all others are far."""
        return _Focused(self, index)

    def tangent_gradient(self, moment: Tensor, reached: Tensor, budget: float) -> Tensor:
        """Differentiate the tangent with respect to its moment (d, d); only the moment's direction matters."""
        v = moment.square().sum()
        across = reached - moment * ((moment * reached).sum() / v.clamp(min=1e-300))
        return across * (-2 * self.slope(float(v), budget))


class _Focused(Disf):
    """`disf` that looks at documents index (b,) alone, whose rows it keeps together, unless others are selected."""

    def __init__(self, whole: Disf, index: Tensor) -> None:
        self.rows, self.masses, self.diagonal = whole.rows, whole.masses, whole.diagonal
        self.rest, self.rest_size = whole.rest, whole.rest_size
        self._whole, self._index, self._few = whole, index, whole.restrict(index)
        self._mask = torch.zeros(len(index), dtype=torch.bool, device=index.device)
        self._moment = self.total(torch.zeros((self.rows.d, self.rows.d), dtype=torch.float64, device=index.device))

    def value(self, masks: Tensor) -> Tensor:
        """Evaluate masks (G, n): (G,) float64."""
        squares = torch.stack([self.moment(mask).square().sum() for mask in masks])
        return self.outer(squares, self.size(masks))

    def moment(self, weights: Tensor) -> Tensor:
        """Sum the outer products: those of a mask (n,) by what it has and has not of the one before."""
        few = weights[self._index]
        if int((few != 0).sum()) != int((weights != 0).sum()):
            return self._whole.moment(weights)
        if weights.dtype != torch.bool:
            return self.total(self._few.moment(few))
        changed, total = few ^ self._mask, self._moment
        if 2 * int(changed.sum()) > int(few.sum()):
            total = self.total(self._few.moment(few))
        elif bool(changed.any()):
            total = total + self._few.moment(changed & few) - self._few.moment(changed & ~few)
        self._mask, self._moment = few, total
        return total

    def scores(self, moment: Tensor) -> Tensor:
        """Compute z_i^T M z_i where it is looked at, elsewhere a large number: (n,) float32."""
        own = self._few.scores(moment)
        scores = torch.full((self.rows.n,), FAR * float(own.abs().max()), device=own.device)
        scores[self._index] = own
        return scores


def _selected(masks: Tensor) -> tuple[Tensor, ...]:
    """Return the selected documents of every mask (G, n), with one transfer from the device for all masks."""
    counts = masks.sum(1).tolist()
    return torch.split(masks.nonzero()[:, 1], counts)
