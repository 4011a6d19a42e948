"""The upper bound, against every selection of small blocks."""

import pytest
import torch

from fineweb_mask.models.selection.metrics.base import Bounded, Linear, Metric
from fineweb_mask.models.selection.objective import Objective
from fineweb_mask.models.selection.solvers.prove import prove
from tests.models.selection.enumerable import full_masks, of_documents, random_objective


@pytest.mark.parametrize("by_tokens", [False, True])
@pytest.mark.parametrize("seeds", [range(10), pytest.param(range(10, 400), marks=pytest.mark.long)], ids=str)
def test_no_selection_exceeds_the_bound(seeds, by_tokens):
    closed = []
    for seed in seeds:
        objective = random_objective(seed, by_tokens=by_tokens)
        masks = full_masks(objective.budget)
        values = objective.value(masks)
        highest, random = float(values.max()), float(values.mean())
        rounding = 1e-5 * (1 + float(values.abs().max()))
        for mask in (masks[int(values.argmax())], masks[0]):
            bound = prove(objective, mask, random)
            assert bound >= highest - rounding
        if highest > random + rounding:
            closed.append((bound - highest) / (bound - random))
    assert sorted(closed)[len(closed) // 2] < 0.5  # it says something


class Spread(Metric):
    """The variance of one number per document."""

    def __init__(self, x):
        self.x = x

    def value(self, masks):
        share = masks.double() / masks.sum(1, keepdim=True)
        return share @ self.x**2 - (share @ self.x) ** 2


class BoundedSpread(Spread, Bounded):
    def place(self, inclusion):
        return (inclusion.double() @ self.x / inclusion.sum())[None]

    def tangent(self, place):
        return float(place[0] ** 2), (self.x**2 - 2 * place[0] * self.x) / 4

    def pull(self, place, taken):
        return 2 * place - 2 * (taken @ self.x)[None] / 4

    def moved(self, place, step, taken):  # noqa: ARG002
        return place - step


def objective_of(metric, weight=1.0):
    return Objective(of_documents(9, 4), {"own": metric}, {"own": weight})


def test_another_metric_is_bounded_by_its_tangents():
    x = torch.linspace(-1, 1, 9, dtype=torch.float64)
    objective = objective_of(BoundedSpread(x))
    masks = full_masks(objective.budget)
    best = masks[int(objective.value(masks).argmax())]
    reached = objective.value_of(best)
    assert reached - 1e-6 <= prove(objective, best, 0.0) <= reached + 0.2
    for unbounded in (objective_of(Spread(x)), objective_of(BoundedSpread(x), weight=-1.0)):
        assert prove(unbounded, best, 0.0) is None


def test_quality_alone_is_bounded_by_the_best():
    quality = torch.arange(10.0)
    objective = Objective(of_documents(10, 4), {"quality": Linear(quality / 4)}, {"quality": 1.0})
    assert prove(objective, quality < 4, 4.5) == pytest.approx((6 + 7 + 8 + 9) / 4)
