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
from fineweb_mask.models.selection.problem.token_budget import Knapsack, top
from fineweb_mask.models.selection.problem.upper_bound import Bound, tightened_bound
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


def by_tokens(x, seed):
    """The term for documents of unequal length, and its budget: 40% of all tokens."""
    tokens = torch.from_numpy(np.random.default_rng(seed).integers(1, 100, len(x)))
    knapsack = Knapsack.of(tokens, max(int(tokens.min()), int(0.4 * tokens.sum())))
    return NearDuplicates.of(Rows(x), THRESHOLD, knapsack), knapsack


def naive(x, mask, threshold, lengths=None):
    chosen = mask.nonzero()[:, 0].tolist()
    lengths = [1] * len(x) if lengths is None else lengths.tolist()
    total = 0.0
    for i in chosen:
        for j in chosen:
            cosine = float(x[i].double() @ x[j].double())
            if i < j and cosine >= threshold:
                total += min(1.0, 0.05 + (cosine - threshold) / (1 - threshold)) * min(lengths[i], lengths[j])
    return -total / sum(lengths[i] for i in chosen)


@pytest.mark.parametrize("seed", range(4))
def test_value_is_the_weight_of_the_selected_pairs(seed):
    x = groups(N, seed)
    metric = NearDuplicates.of(Rows(x), THRESHOLD)
    masks = every_mask(N, BUDGET)[::7]
    expected = [naive(x, mask, THRESHOLD) for mask in masks]
    assert metric.value(masks).tolist() == pytest.approx(expected, abs=1e-5)
    assert min(expected) < 0


@pytest.mark.parametrize("seed", range(4))
def test_near_duplicates_repeat_the_tokens_of_the_shorter_one(seed):
    x = groups(N, seed)
    metric, knapsack = by_tokens(x, seed)
    masks = any_masks(N)[::37]
    expected = [naive(x, mask, THRESHOLD, knapsack.tokens) for mask in masks]
    assert metric.value(masks).tolist() == pytest.approx(expected, abs=1e-5)
    assert min(expected) < 0


@pytest.mark.parametrize("lengths", [False, True])
def test_gradient_is_that_of_the_expectation(lengths):
    x = groups(8, 1)
    metric = by_tokens(x, 1)[0] if lengths else NearDuplicates.of(Rows(x), THRESHOLD)
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


@pytest.mark.parametrize("seed", range(20))
def test_charges_in_order_of_worth_are_the_greedy_selection(seed):
    metric = NearDuplicates.of(Rows(groups(30, seed)), THRESHOLD)
    worth = torch.rand(30, generator=torch.Generator().manual_seed(seed))
    objective = Objective(worth, 8, {"near": metric}, linear_weight=1.0, weights={"near": 3.0})
    mask, gains = torch.zeros(30, dtype=torch.bool), metric.gains(8, 3.0)
    for _ in range(8):
        chosen = int((objective.linear + gains.gains()).masked_fill(mask, -torch.inf).argmax())
        mask[chosen] = True
        gains.add(chosen)
    charged = metric.penalised(objective.linear, 3.0 / 8)
    assert top(charged, 8).tolist() == mask.tolist()
    assert (charged <= objective.linear).all()


@pytest.mark.parametrize("seed", range(20))
def test_charges_by_tokens_are_the_greedy_selection_per_token(seed):
    metric, knapsack = by_tokens(groups(30, seed), seed)
    worth = torch.rand(30, generator=torch.Generator().manual_seed(seed))
    costs = knapsack.costs.float()
    charged, gains = metric.penalised(worth, 0.2, knapsack.costs) / costs, metric.gains(5.0, 1.0)
    taken = torch.zeros(30, dtype=torch.bool)
    for document in charged.sort(descending=True, stable=True).indices.tolist():
        priority = ((worth + gains.gains()) / costs).masked_fill(taken, -torch.inf)
        assert float(priority.max()) == pytest.approx(float(priority[document]), abs=1e-5)
        assert float(charged[document]) == pytest.approx(float(priority[document]), abs=1e-5)
        taken[document] = True
        gains.add(document)


def test_bound_holds_for_every_selection_full_by_tokens():
    for seed in range(60):
        x = groups(N, seed, spread=0.1 + 0.02 * (seed % 8))
        metric, knapsack = by_tokens(x, seed)
        masks = any_masks(N)
        values = metric.value(masks[is_full(masks, knapsack)])
        objective = Objective(
            torch.zeros(N), 4, {"near": metric}, linear_weight=0.0, weights={"near": 2.0}, knapsack=knapsack
        )
        bound = Bound(objective, random_probabilities(N, 4, seed))
        for fall in (0.01, 0.1, 1.0):
            value, taken = bound.evaluate()
            assert value >= 2 * float(values.max()) - 1e-6
            height, slopes = bound.tangents["near"].evaluate()
            every = height + masks[is_full(masks, knapsack)].double() @ slopes
            assert bool((every >= 2 * values - 1e-6).all())
            bound.descend(fall, taken)


@pytest.mark.parametrize("name", [None, *METRICS])
@pytest.mark.parametrize("seed", range(40))
def test_bound_holds_against_enumeration(name, seed):
    x = groups(N, seed, spread=0.1 + 0.02 * (seed % 8))
    quality = torch.rand(N, generator=torch.Generator().manual_seed(seed))
    metrics = {"near": NearDuplicates.of(Rows(x), THRESHOLD)}
    weights = {"near": [0.1, 1.0, 4.0][seed % 3]}
    if name is not None:
        metrics[name], weights[name] = METRICS[name](Rows(x)), 0.5
    objective = Objective(quality, BUDGET, metrics, linear_weight=0.5, weights=weights)
    values = objective.value(every_mask(N, BUDGET))
    best = every_mask(N, BUDGET)[int(values.argmax())]
    pi = random_probabilities(N, BUDGET, seed)
    assert Bound(objective, pi).evaluate()[0] >= float(values.max()) - 1e-6
    assert tightened_bound(objective, pi.float(), best, float(values.mean())) >= float(values.max()) - 1e-6


@pytest.mark.parametrize("solver", ["mean_field", "greedy", "policy_gradient", "top_quality"])
@pytest.mark.parametrize("metrics", ["pairwise", "facility", {"pairwise": 1, "disf": 1}])
def test_weight_zero_changes_nothing(solver, metrics, corpus):
    features, quality = corpus
    settings = SelectionSettings(metrics=metrics, solver=solver, policy_gradient={"n_epochs": 50})
    off = settings.model_copy(update={"near_duplicates": settings.near_duplicates.model_copy(update={"weight": 0.0})})
    apart = off.model_copy(
        update={"near_duplicates": settings.near_duplicates.model_copy(update={"weight": 1.0, "threshold": 1.0})}
    )
    plain, without_pairs = select(features, quality, off), select(features, quality, apart)
    assert plain.terms.keys().isdisjoint({"near_duplicate_cost"})
    assert plain.objective == pytest.approx(without_pairs.objective, abs=2e-3)


@pytest.mark.parametrize("n_copies", [2, 3])
@pytest.mark.parametrize("metrics", ["pairwise", "disf", "facility"])
def test_copies_of_every_document_are_not_selected_together(n_copies, metrics, corpus):
    features, quality = corpus
    distinct = np.arange(60, len(features))  # the first sixty are near-duplicates of others
    many = np.tile(features[distinct], (n_copies, 1)), np.tile(quality[distinct], n_copies)
    settings = SelectionSettings(metrics=metrics, budget=40)
    selection = select(*many, settings)
    originals = selection.indices % len(distinct)
    assert len(set(originals)) >= 40 * 0.99
    alone = select(features[distinct], quality[distinct], settings)
    if metrics == "pairwise":
        without = settings.model_copy(
            update={"near_duplicates": settings.near_duplicates.model_copy(update={"weight": 0.0})}
        )
        assert len(set(select(*many, without).indices % len(distinct))) < 0.8 * 40  # copies come in pairs without it
        mine, best = (np.asarray(features[distinct][i]) for i in (originals, alone.indices))
        assert -_mean_cosine(mine) >= -_mean_cosine(best) - 0.05


def _mean_cosine(x):
    k = len(x)
    return (np.square(x.sum(0)).sum() - k) / (k * (k - 1))


@pytest.mark.parametrize("solver", ["mean_field", "greedy", "policy_gradient", "random", "top_quality", "semdedup"])
def test_forbidden_near_duplicates_are_never_selected(solver, corpus):
    features, quality = corpus
    settings = SelectionSettings(
        solver=solver,
        select_ratio=0.25,
        policy_gradient={"n_epochs": 50},
        near_duplicates={"threshold": 0.9, "forbid": True},
    )
    selection = select(features, quality, settings)
    chosen = features[selection.indices]
    assert (chosen @ chosen.T - np.eye(len(chosen))).max() < 0.9
    assert len(selection.indices) == 100
    assert selection.terms["near_duplicate_cost"] == 0


@pytest.mark.parametrize("solver", ["mean_field", "greedy", "top_quality"])
def test_forbidden_near_duplicates_leave_no_room_for_another_document(solver, corpus):
    features, quality = corpus
    tokens = np.random.default_rng(2).lognormal(5, 1, len(quality)).astype(int) + 1
    settings = SelectionSettings(solver=solver, budget_by="tokens", select_ratio=0.25, near_duplicates={"forbid": True})
    selection = select(features, quality, settings, tokens=tokens)
    chosen = features[selection.indices]
    assert (chosen @ chosen.T - np.eye(len(chosen))).max() < 0.9
    room = round(0.25 * int(tokens.sum())) - int(tokens[selection.indices].sum())
    allowed = (features @ chosen.T).max(1) < 0.9  # none of the selected is
    assert 0 <= room < tokens[allowed].min()


@pytest.mark.parametrize("metrics", ["pairwise", "facility"])
def test_copies_are_not_selected_together_by_tokens(metrics, corpus):
    features, quality = (np.tile(values[60:], (2, 1) if values.ndim == 2 else 2) for values in corpus)
    tokens = np.tile(np.random.default_rng(2).integers(50, 500, len(quality) // 2), 2)
    settings = SelectionSettings(metrics=metrics, budget_by="tokens", select_ratio=0.1)
    selection = select(features, quality, settings, tokens=tokens)
    originals = selection.indices % (len(quality) // 2)
    assert len(set(originals)) >= 0.97 * len(originals)
    assert selection.objective <= selection.upper_bound
    if metrics == "pairwise":
        off = settings.model_copy(update={"near_duplicates": settings.near_duplicates.model_copy(update={"weight": 0})})
        without = select(features, quality, off, tokens=tokens).indices % (len(quality) // 2)
        assert len(set(without)) < 0.9 * len(without)


def test_where_too_few_documents_are_unlike_fewer_are_selected():
    x = groups(40, 0, spread=0.02).numpy()
    settings = SelectionSettings(budget=35, near_duplicates={"threshold": 0.9, "forbid": True})
    selection = select(x, np.arange(40.0), settings)
    assert 0 < len(selection.indices) < 35
    assert selection.upper_bound is None
    chosen = x[selection.indices]
    assert (chosen @ chosen.T - np.eye(len(chosen))).max() < 0.9


def test_forbidding_bound_holds_against_enumeration():
    for seed in range(20):
        x, quality = groups(N, seed), torch.rand(N, generator=torch.Generator().manual_seed(seed))
        near = {"threshold": THRESHOLD, "forbid": True}
        settings = SelectionSettings(metrics="pairwise", budget=3, lamb=0.3, normalize="none", near_duplicates=near)
        selection = select(x, quality, settings)
        metric = NearDuplicates.of(Rows(x), THRESHOLD)
        masks = every_mask(N, 3)
        allowed = masks[metric.value(masks) == 0]
        objective = Objective(
            quality, 3, {"pairwise": METRICS["pairwise"](Rows(x))}, linear_weight=0.3, weights={"pairwise": 0.7}
        )
        best = float(objective.value(allowed).max()) if len(allowed) else None
        if best is not None and len(selection.indices) == 3:
            assert selection.objective <= best + 1e-6 <= selection.upper_bound + 2e-6


def test_a_sweep_charges_every_value_alike(corpus):
    features, quality = corpus
    swept = sweep(features, quality, SelectionSettings(select_ratio=0.2), [0, 0.3, 0.7, 1])
    for before, after in itertools.pairwise(swept):
        net = [
            (one.selection.terms["quality"] - one.selection.terms["near_duplicate_cost"],
             one.selection.terms["diversity"] - one.selection.terms["near_duplicate_cost"])
            for one in (before, after)
        ]  # fmt: skip
        assert net[1][0] >= net[0][0] - 1e-6
        assert net[1][1] <= net[0][1] + 1e-6
    for one in swept:
        terms = one.selection.terms
        mixed = one.lamb * terms["quality"] + (1 - one.lamb) * terms["diversity"] - terms["near_duplicate_cost"]
        assert one.selection.objective == pytest.approx(mixed, abs=1e-6)


def random_pairs(n, share, seed):
    generator = torch.Generator().manual_seed(seed)
    held = (torch.rand((n, n), generator=generator) < share).triu(1)
    first, second = held.nonzero().unbind(1)
    weights = torch.rand(len(first), generator=generator) * 0.95 + 0.05
    return Pairs(first, second, weights), weights


@pytest.mark.parametrize("limits", [(), ("MOST_PAIRS",), ("LEAST_WORK", "WORK_PER_DOCUMENT")])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.6, 1.0])
@pytest.mark.parametrize("seed", range(5))
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
    assert cliques.sums(torch.ones(9)).tolist() == [9]


def test_values_of_cliques_are_spread_to_their_members():
    pairs = Pairs(torch.tensor([0, 2]), torch.tensor([1, 4]), torch.ones(2))
    cliques = cover_with_cliques(6, pairs, torch.tensor([1.0, 0.5]))
    assert cliques.spread(torch.tensor([3.0, 5.0], dtype=torch.float64)).tolist() == [3, 3, 5, 0, 5, 0]


def test_where_very_many_are_alike_all_that_rank_above_penalise(monkeypatch):
    monkeypatch.setattr("fineweb_mask.models.selection.metrics.near_duplicates.MOST_LOOKS", 0)
    metric = NearDuplicates.of(Rows(groups(60, 0)), THRESHOLD)
    gains = torch.rand(60, generator=torch.Generator().manual_seed(0))
    weights = torch.zeros(60, 60)
    weights[metric.pairs.first, metric.pairs.second] = metric.weights
    above = gains[None] > gains[:, None]
    expected = gains - 0.5 * ((weights + weights.T) * above).sum(1)
    torch.testing.assert_close(metric.penalised(gains, 0.5), expected)
