"""The proof of quality: an upper bound on the objective of every selection (ours).

For a concave h with h(m) >= J(m) on every mask and any pi with sum pi = K,

    UB = h(pi) + max over masks of <grad h(pi), m - pi>,

and the maximum is the sum of the K largest entries of the gradient. `upper_bound` is that formula, for any
metric that gives its h (`BuiltInMetric.relaxed`).

The formula holds for tangents at points that no pi reaches, too. `tightened_bound` therefore descends on the
tangents themselves: on the moment of every kernel metric, and for facility location on one level lambda_v
per document, since max_i s_vi <= lambda_v + sum over selected i of max(0, s_vi - lambda_v) (the Lagrange
dual of the p-median problem). UB is convex in these; the steps are Polyak's. Values are accumulated in
float64.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.selection.metrics.base import BuiltInMetric
from fineweb_mask.models.selection.metrics.disf import Disf
from fineweb_mask.models.selection.metrics.facility import Facility
from fineweb_mask.models.selection.metrics.kernel import KernelMetric

if TYPE_CHECKING:
    from torch import Tensor

    from fineweb_mask.models.selection.objective import Objective


class Effort(NamedTuple):
    """How far a bound is tightened."""

    n_steps: int
    closed: float  # share of the range from random to the bound: a gap that needs no tightening
    factor: float  # of the step that would close the gap if the bound were linear and tight
    slower: float  # what a step's factor is of the last one's


# Measured at n = 50,000, d = 768; a step of disf costs O(n d^2), so it has fewer and longer ones.
EFFORT = Effort(120, 5e-5, 0.3, 0.995)
DISF_EFFORT = Effort(32, 0.008, 0.45, 0.97)


def upper_bound(objective: Objective, inclusion: Tensor) -> float | None:
    """Bound the objective of every selection of K documents from above.

    Parameters
    ----------
    objective
        What is maximised.
    inclusion
        (n,) probabilities that sum to K; the better they are, the tighter the bound, but any give one.

    Returns
    -------
    float or None
        None where a metric without a concave relaxation takes part, or has a negative weight.
    """
    if not _bounded(objective):
        return None
    pi = inclusion.double()
    pi = pi * (objective.budget / pi.sum())  # float32 sums are off by their rounding
    linear = objective.linear.double()
    value = objective.constant + float(linear @ pi)
    gradient = linear
    for name, metric in objective.metrics.items():
        weight = objective.weights[name]
        if weight and isinstance(metric, BuiltInMetric):
            relaxed, slope = metric.relaxed(pi)
            value += weight * relaxed
            gradient = gradient + weight * slope
    best = gradient.topk(objective.budget, sorted=False).values.sum()
    return value + float(best - gradient @ pi)


def tightened_bound(
    objective: Objective,
    inclusion: Tensor,  # (n,) probabilities that sum to K
    mask: Tensor,  # (n,) bool, the selection to prove
    random_objective: float,
    *,
    effort_share: float = 1.0,
) -> float | None:
    """Bound the objective of every selection from above, as tightly as a few steps allow.

    Parameters
    ----------
    objective, inclusion, mask
        The problem, probabilities near its solution, and its solution.
    random_objective
        J expected of a uniform random selection: gaps are measured from there.
    effort_share
        Share of the usual steps that may be taken; fewer make a looser bound, not a wrong one.

    Returns
    -------
    float or None
        Never above `upper_bound` at the same inclusion by more than rounding; None where that is None.
    """
    if not _bounded(objective):
        return None
    reached = objective.value_of(mask)
    tangents = _Tangents(objective, inclusion)
    bound, chosen = tangents.evaluate()
    if not tangents.kernels and not tangents.facilities:
        return bound  # J is linear where quality alone counts: the bound is the best selection's
    with_disf = any(isinstance(metric, Disf) for metric in tangents.kernels.values())
    effort = DISF_EFFORT if with_disf else EFFORT
    if bound - reached > effort.closed * (bound - random_objective):
        for pi in ((inclusion + mask) / 2, mask.float()):
            start = _Tangents(objective, pi)
            other, other_chosen = start.evaluate()
            if other < bound:
                tangents, bound, chosen = start, other, other_chosen
    best, factor = bound, effort.factor
    for _ in track("steps of the proof", range(round(effort_share * effort.n_steps))):
        if best - reached <= effort.closed * (best - random_objective):
            break
        tangents.descend(factor * (bound - reached), chosen)
        bound, chosen = tangents.evaluate()
        best = min(best, bound)
        factor *= effort.slower
    return best


def _bounded(objective: Objective) -> bool:
    return all(
        objective.weights[name] == 0 or (objective.weights[name] > 0 and isinstance(metric, BuiltInMetric))
        for name, metric in objective.metrics.items()
    )


class _Tangents:
    """Where each metric is replaced by a linear function above it."""

    def __init__(self, objective: Objective, inclusion: Tensor) -> None:
        self.objective = objective
        self.kernels: dict[str, KernelMetric] = {}
        self.facilities: dict[str, Facility] = {}
        for name, metric in objective.metrics.items():
            if objective.weights[name] and isinstance(metric, KernelMetric):
                self.kernels[name] = metric
            elif objective.weights[name] and isinstance(metric, Facility):
                self.facilities[name] = metric
        self.moments = {name: metric.moment(inclusion) for name, metric in self.kernels.items()}
        self.levels = {name: metric.levels(inclusion) for name, metric in self.facilities.items()}

    def evaluate(self) -> tuple[float, Tensor]:
        """Give the bound and the K documents that reach it, (K,)."""
        objective, budget = self.objective, self.objective.budget
        worth = objective.linear.double()
        bound = objective.constant
        for name, metric in self.kernels.items():
            weight, moment = objective.weights[name], self.moments[name]
            v = moment.square().sum()
            slope = metric.slope(float(v), budget)
            bound += weight * float(metric.outer(v, budget) + 2 * slope * v)
            worth = worth - (2 * weight * slope) * metric.scores(moment).double()
        for name, facility in self.facilities.items():
            weight, level = objective.weights[name], self.levels[name]
            bound += weight * float(level.mean(dtype=torch.float64))
            over = (facility.graph.similarity - level).clamp_(min=0)
            worth = worth + weight / objective.n * facility.graph.sum_back(over).double()
        top = worth.topk(budget, sorted=False)
        return bound + float(top.values.sum()), top.indices

    def descend(self, gain: float, chosen: Tensor) -> None:
        """Step down every tangent's subgradient, so far that a linear bound would fall by `gain`."""
        objective = self.objective
        mask = torch.zeros(objective.n, dtype=torch.bool, device=chosen.device)
        mask[chosen] = True
        gain /= len(self.kernels) + len(self.facilities)
        for name, metric in self.kernels.items():
            gradient = objective.weights[name] * metric.tangent_gradient(
                self.moments[name], metric.moment(mask), objective.budget
            )
            self.moments[name] = self.moments[name] - _step(gain, gradient)
        for name, facility in self.facilities.items():
            graph, level = facility.graph, self.levels[name]
            covered = (mask[graph.index] & (graph.similarity > level)).sum(0)
            gradient = (1 - covered).double() * (objective.weights[name] / objective.n)
            # Below the last neighbour's similarity, documents outside the list would count.
            self.levels[name] = torch.maximum(level - _step(gain, gradient).float(), graph.similarity[-1])


def _step(gain: float, gradient: Tensor) -> Tensor:
    square = float(gradient.square().sum())
    return gradient * (gain / square) if square > 0 else gradient
