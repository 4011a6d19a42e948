"""Bound the objective of every selection from above (ours).

For a concave h with h(m) >= J(m) on every mask, and a tangent of h at any point pi,

    UB = h(pi) + max over masks of <grad h(pi), m - pi>,

and the maximum is the sum of the K largest entries of the gradient. Every metric provides its own tangents
(`SupportsTangent`), which need not belong to a pi. UB is convex in what a tangent is moved by, so a few subgradient
steps of Polyak's length tighten it. Sums are accumulated in float64. Where a metric's tangents are costly to evaluate
(`SupportsFocus`), most steps look only at the documents that may be among the K largest, and every few at all: only
what all documents say is a bound.

With a budget of tokens the maximum is that of a fractional knapsack (`token_budget.py`), and the bound holds for every
full selection, whatever its number of documents.
"""

import torch
from torch import Tensor

from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.selection.metrics.base import FocusableTangent, SupportsFocus, SupportsTangent
from fineweb_mask.models.selection.metrics.kernel import kernels_first
from fineweb_mask.models.selection.problem.measures import FalseBoundError
from fineweb_mask.models.selection.problem.objective import Objective
from fineweb_mask.models.selection.problem.token_budget import Knapsack

ROUNDING = 1e-5  # share of the terms' sizes: a bound this far below an objective may be due to float32 products
# Where steps of the proof may look at some documents, one in four looks at all. That many more steps, which take less
# time in all, then lower the bound as far: measured at n = 50,000, d = 768.
LOOK_EVERY, MORE_STEPS = 4, 1.5
CANCELLED = 1e-12  # share of the weights: float64 rounding of terms that add up to 0


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
        self._is_focused = False
        self.gains: Tensor | None = None  # (n,) float64: the slopes of the bound that was evaluated last
        self.tangents = {
            name: metric.tangent(inclusion, objective.size, objective.weights[name])
            for name, metric in kernels_first(objective.active).items()
            if isinstance(metric, SupportsTangent)
        }

    def evaluate(self) -> tuple[float, Tensor]:
        """Return the bound and a mask at which the tangents reach it, (n,) bool; by tokens (n,) float64 from 0 to 1."""
        if self.objective.knapsack is not None:
            return self._evaluate_knapsack(self.objective.knapsack)
        bound, gains = self.objective.constant, self.objective.linear.double()
        for tangent in self.tangents.values():
            height, slopes = tangent.evaluate()
            bound += height
            gains = gains + slopes
        self.gains = gains
        top = gains.topk(self.objective.budget, sorted=False)
        mask = torch.zeros(len(gains), dtype=torch.bool, device=gains.device)
        mask[top.indices] = True
        return bound + float(top.values.sum()), mask

    def _evaluate_knapsack(self, knapsack: Knapsack) -> tuple[float, Tensor]:
        objective, masses = self.objective, knapsack.masses.double()
        height, least = objective.constant, knapsack.masses_of_full[0]
        shares = masses * objective.quality.double() * objective.linear_weight  # divided by the mass of m
        gains = torch.zeros_like(shares)
        if (credit := objective.credit) is not None:  # divided by its square
            shares += credit.double() / least
        for tangent in self.tangents.values():
            rise, slopes = tangent.evaluate()
            height += rise
            if getattr(tangent, "of_shares", None):
                shares += slopes * objective.size
            else:
                gains += slopes
        self.gains = gains + shares / objective.size
        bound, taken = knapsack.highest(gains, shares)
        return height + bound, taken

    def lowered(self, fall: float, chosen: Tensor, mask: Tensor | None = None) -> tuple[float, Tensor]:
        """Descend at what `evaluate` chose, and evaluate again: the bound and what it is reached by.

        With a mask (n,) bool only its documents and those of the largest slopes are looked at. That is no bound, but
        about what it would be.
        """
        if mask is not None and not self._is_focused:
            assert self.gains is not None  # noqa: S101 - `evaluate` made what was chosen
            self._look_with(self.objective.focused(self.objective.contenders(self.gains, mask)))
        self.descend(fall, chosen)
        if mask is None:
            self._look_with(self.objective)
        return self.evaluate()

    def _look_with(self, objective: Objective) -> None:
        self._is_focused = objective is not self.objective
        for name, tangent in self.tangents.items():
            metric = objective.metrics[name]
            if isinstance(metric, SupportsFocus) and isinstance(tangent, FocusableTangent):
                tangent.metric = metric

    def descend(self, fall: float, mask: Tensor) -> None:
        """Move every tangent down its subgradient at a mask, so far that a linear bound would fall by `fall`."""
        knapsack, whole = self.objective.knapsack, mask
        if knapsack is not None:  # the mask's share of the mass, as of a mask of the size that tangents are made for
            whole = mask * (knapsack.size / float(mask @ knapsack.masses.double()))
        for tangent in self.tangents.values():
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
    effort = min(tangent.effort for tangent in bound.tangents.values())  # the fewest steps: they are the costliest
    if value - reached > effort.closed * (value - random_objective):
        for pi in ((inclusion + mask) / 2, mask.float()):
            other = Bound(objective, pi)
            other_value, other_chosen = other.evaluate()
            if other_value < value:
                bound, value, chosen = other, other_value, other_chosen
    best, factor = value, effort.factor
    n_steps = round(effort_share * effort.n_steps * (MORE_STEPS if objective.may_focus else 1))
    for step in track("steps of the proof", range(1, n_steps + 1)):
        if best - reached <= effort.closed * (best - random_objective):
            break
        proves = not objective.may_focus or step % LOOK_EVERY == 0 or step == n_steps
        value, chosen = bound.lowered(factor * (value - reached), chosen, None if proves else mask)
        best = min(best, value) if proves else best
        factor *= effort.slower
    if assumption(objective):
        return max(best, reached)
    if reached - best > ROUNDING * objective.size_of(mask) + CANCELLED * sum(objective.weights.values()):
        raise FalseBoundError(
            f"the objective {reached:.9g} exceeds its upper bound {best:.9g}: the tangent of a metric among "
            f"{sorted(objective.active)} must lie above that metric"
        )
    return best
