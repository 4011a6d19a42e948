"""`vendi`: the score it is the logarithm of, and how close the solver comes to the best selection."""

import itertools
import math

import pytest
import torch

from fineweb_mask.models.selection import SelectionSettings
from fineweb_mask.models.selection.metrics.vendi import Vendi
from fineweb_mask.models.selection.objective import Objective
from fineweb_mask.models.selection.rows import Rows
from fineweb_mask.models.selection.solvers.mean_field import solve_mean_field
from fineweb_mask.models.selection.solvers.problem import Problem
from tests.models.selection.enumerable import every_mask, random_masks, unit_rows


def test_it_is_the_log_of_as_many_documents_as_are_wholly_different():
    rows = Rows(torch.cat([torch.eye(8), torch.eye(8)]))  # each twice
    for count in (1, 3, 8):
        mask = (torch.arange(16) % 8) < count
        assert math.exp(float(Vendi(rows).value(mask[None])[0])) == pytest.approx(count, rel=1e-6)


def solve(rows, budget, quality=None, lamb=0.0):
    quality = torch.zeros(rows.n) if quality is None else quality
    objective = Objective(quality, budget, {"vendi": Vendi(rows)}, linear_weight=lamb, weights={"vendi": 1.0})
    problem = Problem(rows, objective, SelectionSettings(metrics="vendi"), torch.Generator().manual_seed(0))
    return objective, objective.value_of(solve_mean_field(problem).mask)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("lamb", [0.0, 0.2])
def test_the_best_of_all_selections_is_found_in_tiny_blocks(seed, lamb):
    rows, quality = unit_rows(12, 4, seed), torch.rand(12, generator=torch.Generator().manual_seed(seed))
    objective, found = solve(rows, 4, quality, lamb)
    assert found == pytest.approx(float(objective.value(every_mask(12, 4)).max()), abs=1e-6)


def climbed(objective, mask):
    """The objective after single swaps, each the best of all, until none helps."""
    reached = objective.value_of(mask)
    while True:
        pairs = list(itertools.product(mask.nonzero()[:, 0].tolist(), (~mask).nonzero()[:, 0].tolist()))
        trials = mask.repeat(len(pairs), 1)
        for trial, (out, into) in zip(trials, pairs, strict=True):
            trial[out], trial[into] = False, True
        values = objective.value(trials)
        if float(values.max()) <= reached + 1e-9:
            return reached
        mask, reached = trials[int(values.argmax())], float(values.max())


@pytest.mark.parametrize(("seed", "d"), [(0, 8), (1, 24)])
def test_swaps_from_ten_random_selections_find_nothing_better(seed, d):
    objective, found = solve(unit_rows(60, d, seed), 6)
    best = max(climbed(objective, mask) for mask in random_masks(60, 6, 10, seed))
    assert found >= best - 1e-6
