"""Exact greedy selection, the strong classical baseline: always add the document that gains most.

Gains are those of J with the denominators of the full budget, kept up incrementally. A kernel metric's scores
take one pass O(n d) per pick (`disf` too: its kernel is a squared inner product), or O(n) where the whole
kernel matrix is small and made up front. Facility location is lazy: its gains only fall, so a stale one is an
upper bound and only documents that could win are evaluated again. Its similarities are held whole where they
fit `DENSE_BYTES`, and otherwise computed for each evaluation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.selection.inputs import SelectionInputError
from fineweb_mask.models.selection.metrics.facility import Facility
from fineweb_mask.models.selection.metrics.kernel import KernelMetric
from fineweb_mask.models.selection.solvers.problem import Problem, Solution

if TYPE_CHECKING:
    from torch import Tensor

    from fineweb_mask.models.selection.objective import Objective

DENSE_BYTES = {"cpu": 12 << 30, "cuda": 64 << 30}  # the largest (n, n) float32: n = 56,000 and n = 131,000
WHOLE_KERNEL = 16_384  # most documents whose kernel matrix is held: 1 GiB
PICKS_WORTH_IT = 1 / 16  # of the documents: from there on a product for all of them is faster than a pass for each


def solve_greedy(problem: Problem) -> Solution:
    """Add documents one by one; the inclusion falls from 1 with the order in which they were added."""
    return pick_greedily(problem, part=(0, 0.9))  # the proof follows


def pick_greedily(problem: Problem, *, part: tuple[float, float] = (0, 0)) -> Solution:
    """Solve as `solve_greedy` does; the picks tell what `part` they are of the work around them."""
    objective = problem.objective
    kernels, facilities = _parts(objective)
    mask = torch.zeros(objective.n, dtype=torch.bool, device=objective.quality.device)
    inclusion = torch.zeros(objective.n, device=objective.quality.device)
    for pick in track("greedy picks", range(objective.budget), part=part):
        gains = objective.linear
        for kernel in kernels:
            gains = gains + kernel.gains()
        chosen = _best(gains.masked_fill(mask, -torch.inf), facilities)
        mask[chosen] = True
        inclusion[chosen] = 1 - pick / objective.budget
        for kernel in kernels:
            kernel.add(chosen)
        for facility in facilities:
            facility.add(chosen)
    problem.history.record(objective.budget, objective.value_of(mask))
    return Solution(mask, inclusion)


def _parts(objective: Objective) -> tuple[list[_KernelGains], list[_FacilityGains]]:
    kernels: list[_KernelGains] = []
    facilities: list[_FacilityGains] = []
    for name, metric in objective.metrics.items():
        weight = objective.weights[name]
        if weight == 0:
            continue
        if isinstance(metric, KernelMetric):
            kernels.append(_KernelGains(metric, weight, objective.budget))
        elif isinstance(metric, Facility):
            facilities.append(_FacilityGains(metric, weight))
        else:
            msg = f"metric {name!r} has no exact marginal gains: use solver 'mean_field' or 'policy_gradient'"
            raise SelectionInputError(msg)
    return kernels, facilities


def _best(gains: Tensor, facilities: list[_FacilityGains]) -> int:
    """Find the document of the largest gain, evaluating facility location only where it may decide."""
    upper = gains
    for facility in facilities:
        upper = upper + facility.upper
    if not facilities:
        return int(upper.argmax())
    fresh: set[int] = set()
    while (candidate := int(upper.argmax())) not in fresh:
        upper[candidate] = gains[candidate] + sum(facility.refresh(candidate) for facility in facilities)
        fresh.add(candidate)
    return candidate


class _KernelGains:
    """The gains of a kernel metric, from the scores of what is selected so far."""

    def __init__(self, metric: KernelMetric, weight: float, budget: int) -> None:
        self.metric, self.weight, self.budget = metric, weight, budget
        self.scores = torch.zeros_like(metric.diagonal)
        self.v = torch.zeros((), dtype=torch.float64, device=metric.diagonal.device)
        self._matrix = metric.matrix
        if self._matrix is None and metric.rows.n <= WHOLE_KERNEL and budget > PICKS_WORTH_IT * metric.rows.n:
            rows = metric.rows.block(slice(None))
            self._matrix = metric.kernel(rows, rows)

    def gains(self) -> Tensor:
        """Give every document's gain: (n,) float32."""
        v = self.v + (2 * self.scores + self.metric.diagonal).double()
        return ((self.metric.outer(v, self.budget) - self.metric.outer(self.v, self.budget)) * self.weight).float()

    def add(self, chosen: int) -> None:
        """Add a document."""
        self.v = self.v + 2 * self.scores[chosen] + self.metric.diagonal[chosen]
        if self._matrix is not None:
            self.scores += self._matrix[chosen]
        else:
            row = self.metric.rows.take(torch.tensor([chosen], device=self.scores.device))
            self.scores += self.metric.kernel_with(row[0])


class _FacilityGains:
    """Upper bounds on the gains of facility location, and how well every document is represented."""

    def __init__(self, metric: Facility, weight: float) -> None:
        self.rows, self.weight = metric.rows, weight
        n, device = self.rows.n, self.rows.device
        self.best = torch.zeros(n, device=device)
        self._dense: Tensor | None = None
        if 4 * n * n <= DENSE_BYTES[device.type]:
            self._dense = torch.empty((n, n), device=device)
        self.upper = torch.empty(n, device=device)
        for rows in track("blocks of similarities", list(self.rows.slices(256))):
            similarity = self.rows.dot(self.rows.block(rows).T).T.clamp_(min=0, max=1)
            self.upper[rows] = similarity.mean(1) * weight
            if self._dense is not None:
                self._dense[rows] = similarity

    def similarity(self, document: int) -> Tensor:
        """Give all documents' similarity to one: (n,)."""
        if self._dense is not None:
            return self._dense[document]
        row = self.rows.take(torch.tensor([document], device=self.best.device))
        return self.rows.dot(row[0]).clamp_(min=0, max=1)

    def refresh(self, document: int) -> float:
        """Evaluate a document's gain exactly."""
        gain = (self.similarity(document) - self.best).clamp_(min=0).mean() * self.weight
        self.upper[document] = gain
        return float(gain)

    def add(self, chosen: int) -> None:
        """Add a document."""
        self.best = torch.maximum(self.best, self.similarity(chosen))
