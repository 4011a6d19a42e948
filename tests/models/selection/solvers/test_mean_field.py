"""The relaxation and the swaps: against enumeration, greedy, and their own start."""

import numpy as np
import pytest
import torch

from benchmarks.synthetic import clustered
from fineweb_mask.models.selection.rows import Rows
from fineweb_mask.models.selection.selector import select
from fineweb_mask.models.selection.solvers.greedy import solve_greedy
from fineweb_mask.models.selection.solvers.mean_field import relax, solve_mean_field
from fineweb_mask.models.selection.solvers.problem import Problem
from fineweb_mask.models.settings.selection import SelectionSettings
from tests.models.selection.enumerable import full_masks, random_objective


def problem_of(objective):
    return Problem(
        Rows(torch.eye(objective.budget.n)),
        torch.zeros(objective.budget.n),
        objective,
        SelectionSettings(),
        torch.Generator().manual_seed(0),
    )


@pytest.mark.parametrize("by_tokens", [False, True])
def test_the_answer_is_full_and_nearly_the_best_of_all(by_tokens):
    short = []
    for seed in range(12):
        objective = random_objective(seed, by_tokens=by_tokens)
        masks = full_masks(objective.budget)
        values = objective.value(masks)
        relaxed, greedy = (solve(problem_of(objective)).mask for solve in (solve_mean_field, solve_greedy))
        for found in (relaxed, greedy):
            assert bool((masks == found).all(1).any())
        highest, random = float(values.max()), float(values.mean())
        short.append((highest - objective.value_of(relaxed)) / max(highest - random, 1e-6))
    assert np.median(short) < 1e-4
    assert np.mean(short) < 0.03


@pytest.mark.parametrize(("metric", "lamb"), [("pairwise", 0.5), ("facility", 0.02), ("disf", 0.02), ("disf", 0.5)])
def test_it_reaches_greedy(metric, lamb, corpus):
    chosen = SelectionSettings(metrics=metric, lamb=lamb, select_ratio=0.1)
    closed = select(*corpus, chosen)
    greedy = select(*corpus, chosen.model_copy(update={"solver": "greedy"}))
    # On the range from random to the better of the two; tens of thousands of documents do better still.
    room = max(closed.objective, greedy.objective) - closed.random_objective
    assert closed.objective >= greedy.objective - 0.01 * room
    assert min(closed.upper_bound, greedy.upper_bound) >= max(closed.objective, greedy.objective) - 1e-6


def test_disf_reaches_greedy_where_its_directions_are_fewer_than_the_dimensions():
    chosen, corpus = SelectionSettings(metrics="disf", lamb=0.1, select_ratio=0.1), clustered(500, 96)
    greedy = select(*corpus, chosen.model_copy(update={"solver": "greedy"}))
    assert select(*corpus, chosen).objective >= greedy.objective - 1e-6


def test_a_relaxation_fills_the_budget_and_never_ends_below_the_start():
    for seed in range(6):
        objective = random_objective(seed, by_tokens=bool(seed % 2))
        pi = relax(objective)
        assert float(pi.double() @ objective.budget.costs.double()) == pytest.approx(objective.budget.limit, rel=1e-4)
        assert 0 <= float(pi.min()) <= float(pi.max()) <= 1 + 1e-6
        found = solve_mean_field(problem_of(objective), rounds=0)
        start = objective.budget.fill(objective.budget.worth(objective.gradient(objective.budget.even)))
        assert objective.value_of(found.mask) >= objective.value_of(start) - 1e-9
