"""The bound against enumeration: no selection is better, for built-in metrics and for those that a user adds."""

import os
from dataclasses import replace

import numpy as np
import pytest
import torch

from fineweb_mask.models.selection import SelectionSettings, select
from fineweb_mask.models.selection.metrics.base import EFFORT
from fineweb_mask.models.selection.metrics.facility import Facility
from fineweb_mask.models.selection.problem.measures import FalseBoundError
from fineweb_mask.models.selection.problem.objective import Objective
from fineweb_mask.models.selection.problem.token_budget import Knapsack
from fineweb_mask.models.selection.problem.upper_bound import Bound, tightened_bound
from fineweb_mask.models.selection.rows import Rows
from fineweb_mask.models.selection.solvers.mean_field import solve_mean_field
from fineweb_mask.models.selection.solvers.problem import Problem
from tests.models.selection.enumerable import (
    METRICS,
    any_masks,
    document_problem,
    every_mask,
    is_full,
    objective_of,
    probabilities,
    random_masks,
    token_problem,
    unit_rows,
)

N, BUDGET = 12, 4
TRIALS = int(os.environ.get("FINEWEB_MASK_TRIALS", "400"))  # blocks of which every selection is evaluated
SEEDS = [range(12), *(pytest.param(range(k, k + 50), marks=pytest.mark.long) for k in range(12, TRIALS, 50))]


class Delegating:
    """A third metric that delegates to `facility`, with every optional method, or those named."""

    def __init__(self, rows, methods=None):
        self._metric = Facility(rows, 5)
        self._methods = methods

    def value(self, masks):
        return self._metric.value(masks)

    def __getattr__(self, name):
        if name.startswith("_") or (self._methods is not None and name not in self._methods):
            raise AttributeError(name)
        return getattr(self._metric, name)


class WrongTangent(Delegating):
    """A metric with a tangent that is below it."""

    def tangent(self, inclusion, budget, weight):  # noqa: ARG002
        return Flat(torch.zeros(len(inclusion), dtype=torch.float64))


class Flat:
    effort = EFFORT

    def __init__(self, slopes):
        self.slopes = slopes

    def evaluate(self):
        return 0.0, self.slopes

    def descend(self, mask, fall):
        pass


@pytest.fixture(params=[False, True], ids=["all", "focused"])
def looking(request, monkeypatch):
    """Look at all documents in every step, or as few as metrics that can focus allow."""
    if request.param:
        monkeypatch.setattr("fineweb_mask.models.selection.problem.objective.FEWEST_CONTENDERS", 2)
        monkeypatch.setattr("fineweb_mask.models.selection.problem.objective.FOCUS_FROM", 1)


def problem():
    random = np.random.default_rng(4)
    return random.normal(size=(N, 4)).astype(np.float32) + 0.4, random.random(N).astype(np.float32)


def unit(features):
    return Rows(torch.nn.functional.normalize(torch.from_numpy(features), dim=1))


@pytest.mark.parametrize("budget_by", ["documents", "tokens"])
@pytest.mark.parametrize("seeds", SEEDS, ids=str)
@pytest.mark.usefixtures("looking")
def test_bound_holds_for_every_selection_under_every_mix(seeds, budget_by):
    """By tokens even for those that are not full but use as much as some full selection may."""
    for seed in seeds:
        objective = document_problem(seed) if budget_by == "documents" else token_problem(seed)
        bounded, full = selections(objective)
        highest = float(objective.value(bounded).max())
        best = full[int(objective.value(full).argmax())]
        rounding = 2e-6 * max(1, objective.size_of(best))
        pi = probabilities(objective.n, objective.share * objective.n, seed).float()
        for start in (torch.full((objective.n,), objective.share), pi):
            at_start = Bound(objective, start).evaluate()[0]
            assert at_start >= highest - rounding
        tightened = tightened_bound(objective, pi, best, float(objective.value(full).mean()), effort_share=0.2)
        assert highest - rounding <= tightened <= at_start + rounding


def selections(objective):
    """The masks that a bound must hold for, (G, n) bool, and those of them that are full."""
    if objective.knapsack is None:
        masks = every_mask(objective.n, objective.budget)
        return masks, masks
    masks, knapsack = any_masks(objective.n), objective.knapsack
    used = masks.long() @ knapsack.tokens
    return masks[(used >= knapsack.least) & (used <= knapsack.limit)], masks[is_full(masks, knapsack)]


def test_a_proof_that_looks_at_few_documents_is_nearly_as_tight(corpus, monkeypatch):
    _, objective = objective_of(*corpus, "disf", 40)
    problem = Problem(objective.metrics["disf"].rows, objective, SelectionSettings(), torch.Generator().manual_seed(0))
    solution = solve_mean_field(problem)
    random = float(objective.value(random_masks(400, 40, 50)).mean())
    reached = objective.value_of(solution.mask)
    bounds = [tightened_bound(objective, solution.relaxed, solution.mask, random)]
    monkeypatch.setattr("fineweb_mask.models.selection.problem.objective.FEWEST_CONTENDERS", 80)
    assert objective.may_focus
    bounds.append(tightened_bound(objective, solution.relaxed, solution.mask, random))
    assert bounds[0] != bounds[1]
    assert reached < bounds[1] < bounds[0] + 0.1 * (bounds[0] - reached)


def test_bound_over_equal_lengths_is_that_over_as_many_documents():
    rows, quality = unit_rows(N, 4, seed=5), torch.rand(N, generator=torch.Generator().manual_seed(6))
    knapsack = Knapsack.of(torch.full((N,), 7), 7 * BUDGET + 6)  # with this room `least` is that of BUDGET documents
    weights = {"facility": 0.3}
    pi = probabilities(N, BUDGET).float()
    for metrics, limits in (({}, {}), ({"facility": Facility(rows, 5)}, weights)):
        plain = Objective(quality, BUDGET, metrics, linear_weight=0.4, weights=limits)
        filled = replace(plain, knapsack=knapsack)
        assert Bound(filled, pi).evaluate()[0] >= Bound(plain, pi).evaluate()[0] - 1e-6
        assert Bound(filled, pi).evaluate()[0] <= Bound(plain, pi).evaluate()[0] + 0.25 * weights["facility"] + 1e-6


def best_of_all(features, quality, settings, own):
    """The highest J of all selections, where nothing is normalised and near-duplicates are not charged."""
    metrics = {name: METRICS[name](unit(features)) for name in settings.metric_weights}
    metrics |= {name: metric for name, (metric, _) in own.items()}
    weights = settings.metric_weights | {name: weight for name, (_, weight) in own.items()}
    weights = {name: (1 - settings.lamb) * weight for name, weight in weights.items()}
    objective = Objective(torch.from_numpy(quality), BUDGET, metrics, linear_weight=settings.lamb, weights=weights)
    return float(objective.value(every_mask(N, BUDGET)).max())


AS_IT_IS = {"budget": BUDGET, "normalize": "none", "near_duplicates": {"weight": 0}}


@pytest.mark.parametrize(("others", "solver"), [({}, "greedy"), ({"pairwise": 0.5}, "mean_field")])
@pytest.mark.parametrize("lamb", [0.0, 0.5, 0.9])
def test_a_third_metric_is_bounded_like_any_other(solver, others, lamb):
    features, quality = problem()
    own = {"third": (Delegating(unit(features)), 1.0)}
    settings = SelectionSettings(metrics=others, lamb=lamb, solver=solver, **AS_IT_IS)
    selection = select(features, quality, settings, own_metrics=own)
    best = best_of_all(features, quality, settings, own)
    assert selection.objective <= best + 1e-5 <= selection.upper_bound + 2e-5
    assert 0 <= selection.gap <= 1


WITHOUT_TANGENT = {"gradient", "worth", "gains", "neighbours", "restrict", "random_value"}
LEARNED = {"solver": "policy_gradient", "policy_gradient": {"n_epochs": 20, "n_rollout": 8, "partial": 1.0}}


@pytest.mark.parametrize(
    ("chosen", "methods", "weight"),
    [
        pytest.param({"metrics": {}, "solver": "greedy"}, WITHOUT_TANGENT, 1.0, id="no tangent, greedy"),
        pytest.param({"metrics": {"pairwise": 0.5}}, WITHOUT_TANGENT, 1.0, id="no tangent, mean field"),
        pytest.param({"metrics": {}} | LEARNED, set(), 1.0, id="only a value, learned"),
        pytest.param({"metrics": {"facility": 1.0}}, None, -0.5, id="negative weight"),
    ],
)
def test_a_third_metric_gives_no_bound_where_none_can_be_proved(chosen, methods, weight):
    features, quality = problem()
    own = {"third": (Delegating(unit(features), methods), weight)}
    settings = SelectionSettings(lamb=0.1, **AS_IT_IS, **chosen)
    selection = select(features, quality, settings, own_metrics=own)
    assert (selection.upper_bound, selection.gap) == (None, None)
    assert selection.objective <= best_of_all(features, quality, settings, own) + 1e-5
    objective = Objective(torch.ones(N), BUDGET, {"third": own["third"][0]}, weights={"third": weight})
    with pytest.raises(ValueError, match="no tangent or a negative weight"):
        Bound(objective, torch.full((N,), BUDGET / N))


@pytest.mark.parametrize("lamb", [0.0, 0.9])
def test_a_wrong_tangent_is_an_error(lamb):
    features, quality = problem()
    own = {"wrong": (WrongTangent(unit(features)), 1.0)}
    settings = SelectionSettings(metrics={}, budget=BUDGET, lamb=lamb, normalize="none")
    with pytest.raises(FalseBoundError, match="'wrong'"):
        select(features, quality, settings, own_metrics=own)


def test_quality_alone_is_bounded_by_the_best_whatever_is_selected():
    """Such a selection comes from a budget of tokens, which leaves the best out where they are too long."""
    quality = torch.arange(10.0)
    mask = quality < 4
    objective = Objective(quality, 4, {}, linear_weight=1.0, weights={})
    assert tightened_bound(objective, mask.float(), mask, 4.5) == pytest.approx((6 + 7 + 8 + 9) / 4)
