"""Bound the objective of every selection from above (ours).

Every metric has tangents: h + g . m is never below D(m) for a mask m within the budget. With those of all metrics,

    UB = sum of h + max over masks of <linear + sum of g, m>,

and the maximum is a sort (`Budget.best`). The tangents need not touch at probabilities: UB is convex in the places
where they touch, so a few subgradient steps of Polyak's length tighten it. Sums are accumulated in float64.
"""

from collections.abc import Sequence

from torch import Tensor

from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.selection.measures import FalseBoundError
from fineweb_mask.models.selection.objective import Objective

CLOSED = 5e-5  # share of the range from random to the bound: a smaller gap needs no tightening
LOOK_BACK, WORTH_IT = 15, 0.02  # the proof ends where so many steps close less than this share of the gap
ROUNDING = 1e-5  # share of what a bound adds up: one this far below an objective may be due to float32 products
LEAST = 1e-30  # smaller numbers have few digits left


def prove(objective: Objective, mask: Tensor, random_objective: float, effort: float = 1.0) -> float | None:
    """Bound the objective of every full selection from above.

    None if a metric has no tangents, or a negative weight.

    Parameters
    ----------
    objective
        What was maximised.
    mask
        The selection to prove, (n,) bool.
    random_objective
        J expected of a random selection, from which gaps are measured.
    effort
        Share of the steps that suit the metrics. Fewer make a looser bound, not a wrong one.

    Raises
    ------
    FalseBoundError
        If the selection exceeds the bound by more than rounding.
    """
    if not all(objective.weights[name] > 0 and metric.offers("place") for name, metric in objective.active.items()):
        return None
    reached, inclusion = objective.value_of(mask), objective.inclusion(mask)
    metrics = [(objective.weights[name], metric) for name, metric in objective.active.items()]
    places = [metric.place(inclusion) for _, metric in metrics]
    steps, factor, slower = min((metric.effort for _, metric in metrics), default=(0, 0.0, 0.0))
    lowest, size = list[float](), 0.0
    for step in track("steps of the proof", range(round(effort * steps) + 1)):
        bound, terms, taken = bound_at(objective, places)
        size = terms if not lowest or bound < lowest[-1] else size
        lowest.append(min([bound, *lowest[-1:]]))
        gap = lowest[-1] - reached
        if gap <= CLOSED * (lowest[-1] - random_objective):
            break
        if len(lowest) > LOOK_BACK and lowest[-LOOK_BACK] - lowest[-1] < WORTH_IT * gap:
            break
        fall = factor * slower**step * (bound - reached)  # of a bound that is linear
        for k, (weight, metric) in enumerate(metrics):
            pull = metric.pull(places[k], taken) * weight
            if (square := float(pull.double().square().sum())) > 0:
                places[k] = metric.moved(places[k], pull * (fall / len(places) / square), taken)
    best = lowest[-1]
    if reached - best > max(ROUNDING * size, LEAST):
        raise FalseBoundError(
            f"the objective {reached:.9g} exceeds its upper bound {best:.9g}: the tangent of a metric among "
            f"{sorted(objective.active)} must lie above that metric"
        )
    return best


def bound_at(objective: Objective, places: Sequence[Tensor]) -> tuple[float, float, Tensor]:
    """Bound the objective by one tangent of each metric, which touch at some places.

    Return the bound, the sum of the sizes of what is added up, which rounding is relative to, and the documents at
    which the bound is reached, (n,) float64.
    """
    height, slopes = objective.constant, objective.linear.double()
    size, sizes = abs(height), slopes.abs()
    for (name, metric), place in zip(objective.active.items(), places, strict=True):
        weight, (h, g) = objective.weights[name], metric.tangent(place)
        height, slopes = height + weight * h, slopes + weight * g
        size, sizes = size + abs(weight * h), sizes + (weight * g).abs()
    best, taken = objective.budget.best(slopes)
    return height + best, size + float(sizes @ taken), taken
