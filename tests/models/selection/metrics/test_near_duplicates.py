"""The charge for near-duplicates: its value, derivatives and bound by enumeration, and what it does to selections."""

import itertools

import numpy as np
import pytest
import torch

from fineweb_mask.models.comparison.sweep import sweep
from fineweb_mask.models.selection import SelectionSettings, select
from fineweb_mask.models.selection.graphs.pairs import Pairs
from fineweb_mask.models.selection.metrics import near_duplicates
from fineweb_mask.models.selection.metrics.near_duplicates import NearDuplicates, cover_with_cliques
from fineweb_mask.models.selection.problem.objective import Objective
from fineweb_mask.models.selection.problem.token_budget import Knapsack
from fineweb_mask.models.selection.problem.upper_bound import Bound
from fineweb_mask.models.selection.rows import Rows
from tests.models.selection.enumerable import (
    METRICS,
    any_masks,
    bernoulli_expectation,
    central_differences,
    every_mask,
    is_full,
    random_masks,
)
from tests.models.selection.enumerable import probabilities as random_probabilities

N, BUDGET, THRESHOLD = 10, 4, 0.8


def groups(n, seed, d=6, spread=0.25):
    """Unit rows in groups of one to four near-duplicates."""
    random = np.random.default_rng(seed)
    centres = random.normal(size=(n, d))[np.sort(random.integers(0, max(2, n // 2), n))]
    rows = centres + spread * random.normal(size=(n, d))
    return torch.nn.functional.normalize(torch.from_numpy(rows).float(), dim=1)


def term_of(x, by, seed=0):
    """The term for these documents and, for those of unequal length, its budget: 40% of all tokens."""
    if by == "documents":
        return NearDuplicates.of(Rows(x), THRESHOLD), None
    tokens = torch.from_numpy(np.random.default_rng(seed).integers(1, 100, len(x)))
    knapsack = Knapsack.of(tokens, max(int(tokens.min()), int(0.4 * tokens.sum())))
    return NearDuplicates.of(Rows(x), THRESHOLD, knapsack), knapsack


def naive(x, mask, lengths):
    """Near-duplicates repeat the tokens of the shorter one."""
    chosen = mask.nonzero()[:, 0].tolist()
    total = 0.0
    for i, j in itertools.combinations(chosen, 2):
        cosine = float(x[i].double() @ x[j].double())
        if cosine >= THRESHOLD:
            total += min(1.0, 0.05 + (cosine - THRESHOLD) / (1 - THRESHOLD)) * min(lengths[i], lengths[j])
    return -total / sum(lengths[i] for i in chosen)


BUDGETS = pytest.mark.parametrize("by", ["documents", "tokens"])


@BUDGETS
@pytest.mark.parametrize("seed", range(3))
def test_value_is_the_weight_of_the_selected_pairs(seed, by):
    x = groups(N, seed)
    metric, knapsack = term_of(x, by, seed)
    masks = any_masks(N)[::37]
    expected = [naive(x, mask, [1] * N if knapsack is None else knapsack.tokens.tolist()) for mask in masks]
    assert metric.value(masks).tolist() == pytest.approx(expected, abs=1e-5)
    assert min(expected) < 0


@BUDGETS
def test_gradient_is_that_of_the_expectation(by):
    metric, _ = term_of(groups(8, 1), by, 1)
    pi = random_probabilities(8, 3)

    def mass_times_value(mask):  # the mass counts as a constant
        return float(metric.value(mask[None])[0] * metric.size(mask)) if mask.any() else 0.0

    def expected(values):
        return bernoulli_expectation(mass_times_value, values)

    found = metric.gradient(pi) * metric.size(pi)
    torch.testing.assert_close(found.float(), central_differences(expected, pi).float(), rtol=1e-4, atol=1e-4)


def test_random_value_is_the_mean_over_all_selections():
    metric = NearDuplicates.of(Rows(groups(N, 2)), THRESHOLD)
    assert metric.random_value(BUDGET) == pytest.approx(float(metric.value(every_mask(N, BUDGET)).mean()))


def test_gains_and_worths_are_differences_of_values():
    metric = NearDuplicates.of(Rows(groups(N, 3)), THRESHOLD)
    gains, mask = metric.gains(BUDGET, 2.0), torch.zeros(N, dtype=torch.bool)
    for document in (0, 1, 5, 7):
        with_it = mask.clone()
        with_it[document] = True
        before = float(metric.value(mask[None])[0]) * int(mask.sum()) if mask.any() else 0.0
        gain = 2.0 * (float(metric.value(with_it[None])[0]) * int(with_it.sum()) - before) / BUDGET
        assert float(gains.gains()[document]) == pytest.approx(gain, abs=1e-6)
        gains.add(document)
        mask = with_it
    worth = metric.gradient(mask)
    for document in range(N):
        other = mask.clone()
        other[document] = ~other[document]
        change = float(metric.value(other[None])[0]) * int(other.sum()) - float(metric.value(mask[None])[0]) * BUDGET
        assert float(worth[document]) == pytest.approx((-change if mask[document] else change) / BUDGET, abs=1e-6)


def test_a_batch_holds_its_own_pairs():
    metric = NearDuplicates.of(Rows(groups(N, 4)), THRESHOLD)
    index = torch.tensor([7, 2, 3, 9, 1])
    masks = every_mask(5, 3)
    whole = torch.zeros((len(masks), N), dtype=torch.bool)
    whole[:, index] = masks
    assert metric.restrict(index).value(masks).tolist() == pytest.approx(metric.value(whole).tolist())
    model = metric.swap_model(every_mask(N, BUDGET)[0], 2.0 * BUDGET)
    assert float(model.cross(index).sum()) == pytest.approx(4 * float(metric.restrict(index).weights.sum()))


@BUDGETS
@pytest.mark.parametrize("seed", range(5))
def test_charges_in_order_of_worth_are_the_greedy_selection(seed, by):
    metric, knapsack = term_of(groups(30, seed), by, seed)
    worth = torch.rand(30, generator=torch.Generator().manual_seed(seed))
    costs = torch.ones(30) if knapsack is None else knapsack.costs.float()
    charged = metric.penalised(worth, 0.2, None if knapsack is None else knapsack.costs)
    assert (charged <= worth).all()
    charged, gains = charged / costs, metric.gains(5.0, 1.0)
    taken = torch.zeros(30, dtype=torch.bool)
    for document in charged.sort(descending=True, stable=True).indices.tolist():
        priority = ((worth + gains.gains()) / costs).masked_fill(taken, -torch.inf)
        assert float(priority.max()) == pytest.approx(float(priority[document]), abs=1e-5)
        assert float(charged[document]) == pytest.approx(float(priority[document]), abs=1e-5)
        taken[document] = True
        gains.add(document)


@BUDGETS
def test_bound_holds_for_every_full_selection(by):
    for seed in range(30):
        metric, knapsack = term_of(groups(N, seed, spread=0.1 + 0.02 * (seed % 8)), by, seed)
        masks = every_mask(N, BUDGET) if knapsack is None else any_masks(N)[is_full(any_masks(N), knapsack)]
        values = 2 * metric.value(masks)
        objective = Objective(torch.zeros(N), BUDGET, {"near": metric}, weights={"near": 2.0}, knapsack=knapsack)
        bound = Bound(objective, random_probabilities(N, BUDGET, seed))
        for fall in (0.01, 0.1, 1.0):
            value, taken = bound.evaluate()
            assert value >= float(values.max()) - 1e-6
            height, slopes = bound.tangents["near"].evaluate()
            assert bool((height + masks.double() @ slopes >= values - 1e-6).all())
            bound.descend(fall, taken)


@pytest.mark.parametrize(
    ("solver", "metrics"),
    [
        ("mean_field", {"pairwise": 1, "disf": 1}),
        ("greedy", "facility"),
        ("policy_gradient", "pairwise"),
        ("top_quality", "pairwise"),
    ],
)
def test_weight_zero_changes_nothing(solver, metrics, corpus):
    features, quality = (values[:150] for values in corpus)
    settings = {"metrics": metrics, "solver": solver, "policy_gradient": {"n_epochs": 20}}
    plain = select(features, quality, SelectionSettings(near_duplicates={"weight": 0}, **settings))
    without_pairs = select(features, quality, SelectionSettings(near_duplicates={"threshold": 1.0}, **settings))
    assert "near_duplicate_cost" not in plain.terms
    assert plain.objective == pytest.approx(without_pairs.objective, abs=2e-3)


@BUDGETS
@pytest.mark.parametrize("metrics", ["pairwise", "disf", "facility"])
def test_copies_are_not_selected_together(metrics, by, corpus):
    n = 200
    features, quality = (values[60 : 60 + n] for values in corpus)  # the first sixty are near-duplicates of others
    tokens = np.tile(np.random.default_rng(2).integers(50, 500, n), 2)

    def originals(**settings):
        settings = SelectionSettings(metrics=metrics, budget_by=by, select_ratio=0.1, **settings)
        return select(np.tile(features, (2, 1)), np.tile(quality, 2), settings, tokens=tokens).indices % n

    found = originals()
    assert len(set(found)) >= 0.97 * len(found)
    if metrics == "pairwise":
        without = originals(near_duplicates={"weight": 0})
        assert len(set(without)) < 0.9 * len(without)  # copies come in pairs without it


def largest_cosine(chosen):
    return (chosen @ chosen.T - np.eye(len(chosen))).max()


@BUDGETS
@pytest.mark.parametrize("solver", ["mean_field", "greedy", "policy_gradient", "random", "top_quality", "semdedup"])
def test_forbidden_near_duplicates_are_never_selected_and_leave_no_room_for_another(solver, by, corpus):
    features, quality = (values[:200] for values in corpus)
    costs = np.random.default_rng(2).lognormal(5, 1, 200).astype(int) + 1 if by == "tokens" else np.ones(200, dtype=int)
    options = {"policy_gradient": {"n_epochs": 20}, "near_duplicates": {"forbid": True}}
    settings = SelectionSettings(solver=solver, budget_by=by, select_ratio=0.25, **options)
    selection = select(features, quality, settings, tokens=costs)
    chosen = features[selection.indices]
    assert largest_cosine(chosen) < 0.9
    assert selection.terms["near_duplicate_cost"] == 0
    room = round(0.25 * int(costs.sum())) - int(costs[selection.indices].sum())
    allowed = (features @ chosen.T).max(1) < 0.9  # none of the selected is
    assert 0 <= room < costs[allowed].min(initial=10**6)


def test_where_too_few_documents_are_unlike_fewer_are_selected():
    x = groups(40, 0, spread=0.02).numpy()
    selection = select(x, np.arange(40.0), SelectionSettings(budget=35, near_duplicates={"forbid": True}))
    assert 0 < len(selection.indices) < 35
    assert selection.upper_bound is None
    assert largest_cosine(x[selection.indices]) < 0.9


def test_forbidding_bound_holds_against_enumeration():
    masks, checked = every_mask(N, 3), 0
    for seed in range(8):
        x, quality = groups(N, seed), torch.rand(N, generator=torch.Generator().manual_seed(seed))
        near = {"threshold": THRESHOLD, "forbid": True}
        settings = SelectionSettings(metrics="pairwise", budget=3, lamb=0.3, normalize="none", near_duplicates=near)
        selection = select(x, quality, settings)
        allowed = masks[NearDuplicates.of(Rows(x), THRESHOLD).value(masks) == 0]
        metrics = {"pairwise": METRICS["pairwise"](Rows(x))}
        objective = Objective(quality, 3, metrics, linear_weight=0.3, weights={"pairwise": 0.7})
        if len(allowed) and len(selection.indices) == 3:
            best = float(objective.value(allowed).max())
            assert selection.objective <= best + 1e-6 <= selection.upper_bound + 2e-6
            checked += 1
    assert checked >= 4


def test_a_sweep_charges_every_value_alike(corpus):
    features, quality = (values[:200] for values in corpus)
    nets = []
    for lamb, selection, _ in sweep(features, quality, SelectionSettings(select_ratio=0.2), [0, 0.3, 0.7, 1]):
        terms = selection.terms
        nets.append([terms[name] - terms["near_duplicate_cost"] for name in ("quality", "diversity")])
        assert selection.objective == pytest.approx(lamb * nets[-1][0] + (1 - lamb) * nets[-1][1], abs=1e-6)
    rises = np.diff(nets, axis=0)
    assert (rises[:, 0] >= -1e-6).all()
    assert (rises[:, 1] <= 1e-6).all()


def random_pairs(n, share, seed):
    generator = torch.Generator().manual_seed(seed)
    held = (torch.rand((n, n), generator=generator) < share).triu(1)
    first, second = held.nonzero().unbind(1)
    weights = torch.rand(len(first), generator=generator) * 0.95 + 0.05
    return Pairs(first, second, weights), weights


@pytest.mark.parametrize("limits", [(), ("MOST_PAIRS",), ("LEAST_WORK", "WORK_PER_DOCUMENT")])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.6, 1.0])
@pytest.mark.parametrize("seed", range(2))
def test_cliques_sum_to_the_weights_of_the_pairs(share, seed, limits, monkeypatch):
    for limit in limits:
        monkeypatch.setattr(near_duplicates, limit, 2)
    n = 14
    pairs, weights = random_pairs(n, share, seed)
    cliques = cover_with_cliques(n, pairs, weights)
    for mask in random_masks(n, 6, 50, seed):
        sizes = cliques.sums(mask)
        assert float((cliques.weights * sizes * (sizes - 1) / 2).sum()) == pytest.approx(
            float(weights[mask[pairs.first] & mask[pairs.second]].sum()), abs=1e-4
        )


def test_a_group_of_equal_pairs_is_one_clique():
    pairs, _ = random_pairs(9, 1.0, 0)
    cliques = cover_with_cliques(9, pairs, torch.full((len(pairs),), 0.7))
    assert cliques.weights.tolist() == [pytest.approx(0.7)]


def test_where_very_many_are_alike_all_that_rank_above_penalise(monkeypatch):
    monkeypatch.setattr(near_duplicates, "MOST_LOOKS", 0)
    metric = NearDuplicates.of(Rows(groups(60, 0)), THRESHOLD)
    gains = torch.rand(60, generator=torch.Generator().manual_seed(0))
    weights = torch.zeros(60, 60)
    weights[metric.pairs.first, metric.pairs.second] = metric.weights
    above = gains[None] > gains[:, None]
    expected = gains - 0.5 * ((weights + weights.T) * above).sum(1)
    torch.testing.assert_close(metric.penalised(gains, 0.5), expected)
