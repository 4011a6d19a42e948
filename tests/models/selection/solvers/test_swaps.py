"""Swaps keep the budget and gain what the marginal worths promise."""

import numpy as np
import pytest
import torch

from fineweb_mask.models.selection import SelectionSettings
from fineweb_mask.models.selection.problem.token_budget import top
from fineweb_mask.models.selection.solvers.problem import History, Problem
from fineweb_mask.models.selection.solvers.swaps import (
    batch_round,
    dual_price,
    exchanged,
    polish,
    pool_round,
    refine,
    swap_in_pool,
)
from tests.models.selection.enumerable import any_masks, is_full, objective_of, token_problem


@pytest.mark.parametrize("metric", ["pairwise", "disf"])
def test_pool_swaps_gain_what_their_worth_says(metric, corpus):
    _, objective = objective_of(*corpus, metric, 40)
    mask = top(objective.quality, 40)
    before = objective.value_of(mask)
    swapped, swaps = pool_round(objective, mask, 400)
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


def test_swaps_among_few_documents_reach_what_those_among_all_do(corpus, monkeypatch):
    rows, objective = objective_of(*corpus, "disf", 40)
    start, reached = top(objective.quality, 40), []
    for fewest in (4096, 80):
        monkeypatch.setattr("fineweb_mask.models.selection.problem.objective.FEWEST_CONTENDERS", fewest)
        assert objective.may_focus == (fewest == 80)
        history = History(entries=[(0, 0.0, objective.value_of(start))])
        mask = refine(Problem(rows, objective, SelectionSettings(), torch.Generator(), history=history), start)
        assert int(mask.sum()) == 40
        assert history.entries[-1][-1] == pytest.approx(objective.value_of(mask), rel=1e-5)
        reached.append(objective.value_of(mask))
    assert reached[1] - objective.value_of(start) > 0.99 * (reached[0] - objective.value_of(start))


SEEDS = range(40)


def pool(seed):
    random = np.random.default_rng(seed)
    n = int(random.integers(2, 9))
    rows = random.normal(size=(n, 3))
    cross = (rows @ rows.T).astype(np.float32)
    return random.normal(size=n), cross, random.integers(1, 30, n), random.random(n) < 0.5, int(random.integers(0, 20))


def value(worth, cross, before, after):
    """Change of a quadratic objective whose worths, of adding or dropping, are those at `before`."""
    step = after.astype(float) - before
    return step @ worth - (step @ cross @ step - step**2 @ np.diag(cross)) / 2


def test_swaps_in_a_pool_gain_fit_and_end_where_no_swap_helps():
    for seed in SEEDS:
        worth, cross, lengths, before, room = pool(seed)
        after, swaps = swap_in_pool(worth, cross, lengths, before.copy(), room=room, most=100)
        assert lengths[after].sum() <= lengths[before].sum() + room
        gained = value(worth, cross, before, after)
        assert gained >= 0
        assert (swaps > 0) == (after != before).any()
        left = room + lengths[before].sum() - lengths[after].sum()
        for out in [None, *np.flatnonzero(after)]:
            for into in [None, *np.flatnonzero(~after)]:
                other = after.copy()
                other[[document for document in (out, into) if document is not None]] ^= True
                if lengths[other].sum() <= lengths[after].sum() + left:
                    assert value(worth, cross, before, other) <= gained + 1e-5


def test_at_the_price_the_budget_is_full():
    for seed in SEEDS:
        objective = token_problem(seed)
        knapsack, worth = objective.knapsack, torch.from_numpy(np.random.default_rng(seed).normal(size=objective.n))
        above = worth / knapsack.costs > dual_price(knapsack, worth)
        assert int(knapsack.tokens[above].sum()) <= knapsack.limit
        at_least = worth / knapsack.costs >= dual_price(knapsack, worth)
        assert bool(at_least.all()) or int(knapsack.tokens[at_least].sum()) > knapsack.limit


def test_an_exchange_is_full_without_what_it_drops_if_anything_else_fits():
    for seed in SEEDS:
        objective = token_problem(seed)
        knapsack, priority = objective.knapsack, torch.rand(objective.n)
        mask = knapsack.fill(priority)
        for out in mask.nonzero():
            swapped = exchanged(knapsack, mask, out, (~mask).nonzero()[:, 0], priority)
            assert bool(is_full(swapped[None], knapsack))
            room = knapsack.limit - int(knapsack.tokens[mask].sum() - knapsack.tokens[out])
            if bool((knapsack.tokens[~mask] <= room).any()):
                assert bool(swapped[~mask].any())


def test_polishing_ends_near_the_best_of_enumeration_and_never_below_its_start():
    short = []
    for seed in range(60):
        objective = token_problem(seed)
        start = objective.knapsack.fill(torch.rand(objective.n, generator=torch.Generator().manual_seed(seed)))
        polished = polish(objective, start)
        assert bool(is_full(polished[None], objective.knapsack))
        assert objective.value_of(polished) >= objective.value_of(start)
        masks = any_masks(objective.n)
        values = objective.value(masks[is_full(masks, objective.knapsack)])
        spread = float(values.max() - values.mean())
        short.append((float(values.max()) - objective.value_of(polished)) / spread if spread > 1e-6 else 0.0)
    assert np.median(short) < 1e-3
    assert np.mean(short) < 0.15
