"""Bound the objective of every selection from above (ours).

Every metric has tangents: h + g . m is never below D(m) for a mask m within the budget. With those of all metrics,

    UB = sum of h + max over masks of <linear + sum of g, m>,

and the maximum is a sort (`Budget.best`). The tangents need not touch at probabilities: UB is convex in the places
where they touch, so a few subgradient steps of Polyak's length tighten it. Sums are accumulated in float64.
"""

from torch import Tensor

from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.selection.metrics.base import Bounded
from fineweb_mask.models.selection.objective import Objective

CLOSED = 5e-5  # share of the range from random to the bound: a smaller gap needs no tightening
LOOK_BACK, WORTH_IT = 15, 0.02  # the proof ends where so many steps close less than this share of the gap


def prove(objective: Objective, mask: Tensor, random_objective: float) -> float | None:
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
    """
    metrics = [
        (objective.weights[name], metric)
        for name, metric in objective.active.items()
        if isinstance(metric, Bounded) and objective.weights[name] > 0
    ]
    if len(metrics) < len(objective.active):
        return None
    reached, inclusion = objective.value_of(mask), objective.inclusion(mask)
    places = [metric.place(inclusion) for _, metric in metrics]
    steps, factor, slower = min((metric.effort for _, metric in metrics), default=(0, 0.0, 0.0))
    lowest, taken, movable = list[float](), mask.double(), sum(len(place) > 0 for place in places)
    for step in track("steps of the proof", range(steps + 1)):
        bound, slopes = objective.constant, taken.new_zeros(len(mask))
        for (weight, metric), place in zip(metrics, places, strict=True):
            h, g = metric.tangent(place)
            bound, slopes = bound + weight * h, slopes + weight * g
        best, taken = objective.budget.best(slopes)
        bound += best
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
                places[k] = metric.moved(places[k], pull * (fall / movable / square), taken)
    return lowest[-1]
