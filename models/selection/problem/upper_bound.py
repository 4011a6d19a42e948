"""Bound the objective of every selection from above (ours).

For a concave h with h(m) >= J(m) on every mask, and a tangent of h at any point pi,

    UB = h(pi) + max over masks of <grad h(pi), m - pi>,

and the maximum is the sum of the K largest entries of the gradient. Every metric provides its own tangents
(`SupportsTangent`), which need not belong to a pi. UB is convex in what a tangent is moved by, so a few subgradient
steps of Polyak's length tighten it. Sums are accumulated in float64.

With a budget of tokens the maximum is that of a fractional knapsack (`token_budget.py`), and the bound holds for every
full selection, whatever its number of documents.
"""

import torch
from torch import Tensor

from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.selection.metrics.base import SupportsTangent
from fineweb_mask.models.selection.metrics.kernel import kernels_first
from fineweb_mask.models.selection.problem.measures import FalseBoundError
from fineweb_mask.models.selection.problem.objective import Objective
from fineweb_mask.models.selection.problem.token_budget import Knapsack

ROUNDING = 1e-5  # of the terms' sizes: a bound this far below an objective may be due to float32 products
CANCELLED = 1e-12  # of the weights: float64 rounding of terms that add up to 0


class Bound:
    """An upper bound on the objective of every selection of K documents (or full by its tokens).

    It comes from one tangent per metric.

    Any inclusion probabilities (n,) that sum to K give a bound; better ones give a tighter bound. An objective that
    is not `is_bounded` raises ValueError.
    """

    def __init__(self, objective: Objective, inclusion: Tensor) -> None:
        if not is_bounded(objective):
            raise ValueError(f"a metric among {sorted(objective.active)} has no tangent or a negative weight")
        self.objective = objective
        self.tangents = [
            metric.tangent(inclusion, objective.size, objective.weights[name])
            for name, metric in kernels_first(objective.active).items()
            if isinstance(metric, SupportsTangent)
        ]

    def evaluate(self) -> tuple[float, Tensor]:
        """Return the bound and a mask at which the tangents reach it, (n,) bool; by tokens (n,) float64 from 0 to 1."""
        if self.objective.knapsack is not None:
            return self._evaluate_knapsack(self.objective.knapsack)
        bound, worth = self.objective.constant, self.objective.linear.double()
        for tangent in self.tangents:
            height, slopes = tangent.evaluate()
            bound += height
            worth = worth + slopes
        top = worth.topk(self.objective.budget, sorted=False)
        mask = torch.zeros(len(worth), dtype=torch.bool, device=worth.device)
        mask[top.indices] = True
        return bound + float(top.values.sum()), mask

    def _evaluate_knapsack(self, knapsack: Knapsack) -> tuple[float, Tensor]:
        objective, masses = self.objective, knapsack.masses.double()
        height, least = objective.constant, knapsack.masses_of_full[0]
        shares = masses * objective.quality.double() * objective.linear_weight  # divided by the mass of m
        worth, constant = torch.zeros_like(shares), 0.0
        if (credit := objective.credit) is not None:  # divided by its square: with equal masses 1 / mass is left
            if knapsack.by_tokens:
                shares += credit.double() / least
            else:
                constant = float(credit[0])
        for tangent in self.tangents:
            rise, slopes = tangent.evaluate()
            height += rise
            if getattr(tangent, "of_shares", None):
                shares += slopes * objective.size
            else:
                worth += slopes
        bound, taken = knapsack.highest(worth, shares, constant)
        return height + bound, taken

    def descend(self, fall: float, mask: Tensor) -> None:
        """Move every tangent down its subgradient at a mask, so far that a linear bound would fall by `fall`."""
        knapsack, whole = self.objective.knapsack, mask
        if knapsack is not None:  # the mask's share of the mass, as of a mask of the size that tangents are made for
            whole = mask * (knapsack.size / float(mask @ knapsack.masses.double()))
        for tangent in self.tangents:
            tangent.descend(whole if getattr(tangent, "of_shares", None) else mask, fall / len(self.tangents))


def is_bounded(objective: Objective) -> bool:
    """Return whether every metric of nonzero weight has a tangent and a positive weight."""
    return all(
        objective.weights[name] > 0
        and isinstance(metric, SupportsTangent)
        and (objective.knapsack is None or _bounds_every_size(objective, metric))
        for name, metric in objective.active.items()
    )


def _bounds_every_size(objective: Objective, metric: SupportsTangent) -> bool:
    at = torch.full_like(objective.quality, objective.size / objective.n)
    return getattr(metric.tangent(at, objective.size, 1.0), "of_shares", None) is not None


def assumption(objective: Objective) -> str | None:
    """Return what a bound takes for granted, as its metrics say in `bound_assumes`; None if it is proven."""
    found = [getattr(metric, "bound_assumes", None) for metric in objective.active.values()]
    return "; ".join(filter(None, found)) or None


def tightened_bound(
    objective: Objective, inclusion: Tensor, mask: Tensor, random_objective: float, *, effort_share: float = 1.0
) -> float | None:
    """Bound the objective of every selection from above, as tightly as a few steps allow; None unless `is_bounded`.

    `inclusion` (n,) are probabilities near the solution that sum to K, `mask` (n,) bool is the selection to prove, and
    `random_objective` is the J expected of a uniform random selection, from which gaps are measured. Fewer steps, the
    `effort_share` of the usual ones, make a looser bound, not a wrong one. A mask that exceeds the bound by more than
    rounding raises FalseBoundError, or raises a bound that rests on an `assumption`.
    """
    if not is_bounded(objective):
        return None
    reached, bound = objective.value_of(mask), Bound(objective, inclusion)
    value, chosen = bound.evaluate()
    if not bound.tangents:
        return value  # J is linear where quality alone counts: the bound is the best selection's
    effort = min(tangent.effort for tangent in bound.tangents)  # the fewest steps: they are the costliest
    if value - reached > effort.closed * (value - random_objective):
        for pi in ((inclusion + mask) / 2, mask.float()):
            other = Bound(objective, pi)
            other_value, other_chosen = other.evaluate()
            if other_value < value:
                bound, value, chosen = other, other_value, other_chosen
    best, factor = value, effort.factor
    for _ in track("steps of the proof", range(round(effort_share * effort.n_steps))):
        if best - reached <= effort.closed * (best - random_objective):
            break
        bound.descend(factor * (value - reached), chosen)
        value, chosen = bound.evaluate()
        best = min(best, value)
        factor *= effort.slower
    if assumption(objective):
        return max(best, reached)
    if reached - best > ROUNDING * objective.size_of(mask) + CANCELLED * sum(objective.weights.values()):
        raise FalseBoundError(
            f"the objective {reached:.9g} exceeds its upper bound {best:.9g}: the tangent of a metric among "
            f"{sorted(objective.active)} must lie above that metric"
        )
    return best
