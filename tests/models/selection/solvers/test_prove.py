"""The upper bound, against every selection of small blocks."""

import pytest
import torch

from fineweb_mask.models.selection.measures import FalseBoundError
from fineweb_mask.models.selection.metrics.base import Metric
from fineweb_mask.models.selection.metrics.facility import Facility
from fineweb_mask.models.selection.neighbours import Neighbours
from fineweb_mask.models.selection.objective import Objective
from fineweb_mask.models.selection.solvers.prove import bound_at, prove
from tests.models.selection.enumerable import full_masks, of_documents, random_objective, unit_rows


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
            inclusion = objective.inclusion(mask)
            start, _, _ = bound_at(objective, [metric.place(inclusion) for metric in objective.active.values()])
            bound = prove(objective, mask, random, effort=0.4)
            assert highest - rounding <= bound <= start + rounding
        if highest > random + rounding:
            closed.append((bound - highest) / (bound - random))
    assert sorted(closed)[len(closed) // 2] < 0.5  # it says something


class Spread(Metric):
    """The variance of one number per document, with a tangent that is too low by some part of it."""

    def __init__(self, x, too_low=0.0):
        self.x, self.too_low = x, too_low

    def value(self, masks):
        share = masks.double() / masks.sum(1, keepdim=True)
        return share @ self.x**2 - (share @ self.x) ** 2

    def gradient(self, inclusion):
        share = inclusion.double() / inclusion.sum()
        return ((self.x**2 - 2 * (share @ self.x) * self.x) / inclusion.sum()).float()


class Tangible(Spread):
    def place(self, inclusion):
        return (inclusion.double() @ self.x / inclusion.sum())[None]

    def tangent(self, place):
        return float(place[0] ** 2) - self.too_low, (self.x**2 - 2 * place[0] * self.x) / 4

    def pull(self, place, taken):
        return 2 * place - 2 * (taken @ self.x)[None] / 4


def objective_of(metric, weight=1.0):
    return Objective(of_documents(9, 4), torch.rand(9), 0.3, {"own": metric}, {"own": weight})


def test_an_own_metric_is_bounded_by_its_tangents_and_a_wrong_one_is_an_error():
    x = torch.linspace(-1, 1, 9, dtype=torch.float64)
    objective = objective_of(Tangible(x))
    masks = full_masks(objective.budget)
    best = masks[int(objective.value(masks).argmax())]
    reached = objective.value_of(best)
    assert reached - 1e-6 <= prove(objective, best, 0.0) <= reached + 0.2
    with pytest.raises(FalseBoundError, match="'own'"):
        prove(objective_of(Tangible(x, too_low=2.0)), best, 0.0)
    for unbounded in (objective_of(Spread(x)), objective_of(Tangible(x), weight=-1.0)):
        assert prove(unbounded, best, 0.0) is None


def test_a_bound_below_the_objective_is_an_error():
    rows, budget = unit_rows(30, 4), of_documents(30, 5)
    wrong = Facility(rows, budget, Neighbours(torch.full((1, 30), 29), torch.zeros(1, 30)))  # lists of another corpus
    objective = Objective(budget, torch.zeros(30), 0.0, {"f": wrong}, {"f": 1.0})
    with pytest.raises(FalseBoundError):
        prove(objective, torch.arange(30) < 5, 0.0)


def test_quality_alone_is_bounded_by_the_best():
    quality = torch.arange(10.0)
    objective = Objective(of_documents(10, 4), quality, 1.0)
    assert prove(objective, quality < 4, 4.5) == pytest.approx((6 + 7 + 8 + 9) / 4)
