"""Swaps keep the budget and gain what the marginal worths promise."""

import pytest
import torch

from fineweb_mask.models.selection.problem.token_budget import top
from fineweb_mask.models.selection.solvers.swaps import batch_round, pool_round
from tests.models.selection.enumerable import objective_of


@pytest.mark.parametrize("metric", ["pairwise", "disf"])
def test_pool_swaps_gain_what_their_worth_says(metric, corpus):
    _, objective = objective_of(*corpus, metric, 40)
    mask = top(objective.quality, 40)
    before = objective.value_of(mask)
    swapped, swaps = pool_round(objective, mask, 400, 1000)
    assert swaps > 0
    assert int(swapped.sum()) == 40
    assert objective.value_of(swapped) > before
    if metric == "pairwise":  # linear in v: one pool of everything ends where no single swap helps
        value = objective.value_of(swapped)
        for out in swapped.nonzero()[:, 0].tolist():
            trial = swapped.repeat(360, 1)
            trial[:, out] = False
            trial[torch.arange(360), (~swapped).nonzero()[:, 0]] = True
            assert float(objective.value(trial).max()) <= value + 1e-3 * abs(value)


def test_batch_swaps_keep_the_budget_and_raise_the_objective(corpus):
    _, objective = objective_of(*corpus, "facility", 40)
    mask = top(objective.quality, 40)
    before = objective.value_of(mask)
    swapped, value, swaps = batch_round(objective, mask, before, 20)
    assert swaps > 0
    assert value > before
    assert int(swapped.sum()) == 40
    assert value == objective.value_of(swapped)
