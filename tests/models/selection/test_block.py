"""A block, solved by every solver: budgets, determinism, proof by enumeration, degenerate documents."""

import itertools
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fineweb_mask.models.selection import (
    SelectionSettings,
    SelectorInputs,
    Targets,
    select,
)
from fineweb_mask.models.selection.block import checked_block
from fineweb_mask.models.selection.problem.normalisation import BlockEnds, find_ranges
from fineweb_mask.models.selection.problem.objective import Objective
from fineweb_mask.models.selection.selector import term_ranges
from fineweb_mask.models.selection.solvers.mean_field import solve_mean_field
from fineweb_mask.models.selection.solvers.problem import History
from fineweb_mask.models.settings.selectors.registry import SELECTORS
from tests.models.selection.enumerable import METRICS, any_masks, is_full

FEW_STEPS = {"n_epochs": 5, "n_rollout": 8}
MAXIMISERS = {"mean_field", "policy_gradient", "greedy"}
SOLVED = [
    (solver, metric) for solver in SELECTORS for metric in METRICS if solver in MAXIMISERS or metric == "pairwise"
]
"""Selectors that do not maximise the objective read no metric: one is enough."""


def also_of(features, quality):
    """Return what some selectors read: two scores, three groups, targets of two tasks, importance weights."""
    random = np.random.default_rng(7)
    return SelectorInputs(
        scores={"one": quality, "two": random.random(len(quality))},
        groups=random.integers(0, 3, len(quality)),
        targets=Targets(
            features[:: max(1, len(features) // 6)], np.arange(len(features[:: max(1, len(features) // 6)])) % 2
        ),
        log_weights=random.normal(size=len(quality)),
    )


@pytest.mark.parametrize(("solver", "metric"), SOLVED)
def test_every_solver_gives_a_whole_answer_twice_the_same(solver, metric, corpus):
    features, quality = corpus
    chosen = SelectionSettings(solver=solver, metrics=metric, select_ratio=0.15, seed=3, policy_gradient=FEW_STEPS)
    first, second = (select(features, quality, chosen, also=also_of(features, quality)) for _ in range(2))
    assert first.indices.dtype == np.int64
    assert len(first.indices) == 60
    assert (np.diff(first.indices) > 0).all()
    assert first.inclusion.dtype == np.float32
    assert first.inclusion.shape == (400,)
    assert np.isfinite(first.inclusion).all()
    assert first.indices.tobytes() == second.indices.tobytes()
    assert first.inclusion.tobytes() == second.inclusion.tobytes()
    assert (first.objective, first.upper_bound) == (second.objective, second.upper_bound)
    terms = first.terms
    assert terms["mean_quality"] == pytest.approx(float(quality[first.indices].mean()), rel=1e-5)
    mixed = chosen.lamb * terms["quality"] + (1 - chosen.lamb) * terms["diversity"] - terms["near_duplicate_cost"]
    assert first.objective == pytest.approx(mixed, abs=1e-6)
    objectives = [objective for _, _, objective in first.history]
    assert objectives == sorted(objectives)


@pytest.mark.parametrize("normalize", ["none", "range"])
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("lamb", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_certificate_and_answer_against_enumeration(metric, lamb, normalize):
    random = np.random.default_rng(4)
    n, budget = 12, 4
    features, quality = random.normal(size=(n, 4)) + 0.4, random.random(n)
    chosen = SelectionSettings(
        metrics=metric, budget=budget, lamb=lamb, normalize=normalize, near_duplicates={"weight": 0}
    )
    selection = select(features, quality, chosen)
    # The objective of every selection, from its own terms: quality, and a metric alone.
    best = max(
        _value(
            features,
            quality,
            np.array(indices),
            selection=selection,
            metric=metric,
            lamb=lamb,
            normalize=normalize,
        )
        for indices in itertools.combinations(range(n), budget)
    )
    assert selection.objective <= best + 1e-5
    assert selection.upper_bound >= best - 1e-5
    room = max(best - selection.random_objective, 1e-9)
    assert best - selection.objective <= 0.15 * room + 1e-6
    assert 0 <= selection.gap <= 1


def _value(features, quality, indices, *, selection, metric, lamb, normalize):
    from fineweb_mask.models.selection.rows import Rows

    mask = torch.zeros(len(quality), dtype=torch.bool)
    mask[indices] = True
    rows = Rows(torch.nn.functional.normalize(torch.tensor(features, dtype=torch.float32), dim=1))
    raw = float(METRICS[metric](rows).value(mask[None])[0])
    mean = float(quality[indices].mean())
    if normalize == "none":
        return lamb * mean + (1 - lamb) * raw
    # range is linear in the raw terms: read it off the selection's own pairs of raw and scaled terms
    base = {"quality": float(quality.mean())}
    top = float(np.sort(quality)[-len(indices) :].mean())
    scaled_quality = (mean - base["quality"]) / (top - base["quality"])
    random_raw = _random_raw(rows, metric, len(indices))
    own = selection.terms
    scaled = own["diversity"] * (raw - random_raw) / (own[metric] - random_raw)
    return lamb * scaled_quality + (1 - lamb) * scaled


def _random_raw(rows, metric, budget):
    made, generator = {metric: METRICS[metric](rows)}, torch.Generator().manual_seed(0)
    ends = BlockEnds(SelectionSettings(normalize="none"), rows, generator)
    return find_ranges(Objective(torch.zeros(rows.n), budget), made, ends).metrics[metric].random


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("n_steps", [1, 3])
def test_few_steps_never_end_below_the_start(metric, n_steps, corpus, monkeypatch):
    entry = replace(SELECTORS["mean_field"], solve=partial(solve_mean_field, n_steps=n_steps, rounds=0))
    monkeypatch.setitem(SELECTORS, "mean_field", entry)
    selection = select(*corpus, SelectionSettings(metrics=metric, lamb=0.1))
    assert selection.objective >= selection.history[0][2] - 1e-9
    assert selection.history[-1][0] == n_steps + 1  # picked greedily, after annealing


def test_lamb_one_is_top_quality_where_near_duplicates_are_not_charged(corpus):
    features, quality = corpus
    best = select(features, quality, SelectionSettings(lamb=1.0, near_duplicates={"weight": 0}))
    assert set(best.indices) == set(np.argsort(-quality)[:40])
    assert best.objective == pytest.approx(1.0, abs=1e-5)


def test_several_metrics_are_bounded_and_better_than_random(corpus):
    selection = select(*corpus, SelectionSettings(metrics={"pairwise": 0.5, "facility": 0.3, "disf": 0.2}, lamb=0.3))
    assert selection.random_objective < selection.objective <= selection.upper_bound
    assert {"pairwise", "facility", "disf"} <= set(selection.terms)


@pytest.fixture(scope="module")
def ranges_once():
    """Find ranges once per case: they do not depend on the solver, and take longer than most solvers."""
    found = {}

    def ranges(case, features, quality, settings, tokens=None):
        if case not in found:
            found[case] = term_ranges(features, quality, settings, tokens=tokens)
        return found[case]

    return ranges


@pytest.mark.parametrize(("solver", "metric"), SOLVED)
def test_token_budget_is_full_and_never_exceeded(solver, metric, corpus, ranges_once):
    features, quality = (values[:150] for values in corpus)
    tokens = np.random.default_rng(2).lognormal(5, 1, len(quality)).astype(int) + 1
    by_tokens = {"budget_by": "tokens", "policy_gradient": FEW_STEPS}
    settings = SelectionSettings(solver=solver, metrics=metric, select_ratio=0.2, **by_tokens)
    ranges = ranges_once(("tokens", metric), features, quality, settings, tokens)
    selection = select(features, quality, settings, tokens=tokens, ranges=ranges, also=also_of(features, quality))
    room = round(0.2 * int(tokens.sum())) - int(tokens[selection.indices].sum())
    assert room >= 0
    assert room < np.delete(tokens, selection.indices).min()
    mean = np.average(quality[selection.indices], weights=tokens[selection.indices])
    assert selection.terms["mean_quality"] == pytest.approx(mean)
    if solver in {"mean_field", "greedy"}:
        assert selection.random_objective < selection.objective <= selection.upper_bound
        if solver == "mean_field":
            again = select(features, quality, settings, tokens=tokens)
            assert again.indices.tobytes() == selection.indices.tobytes()


@pytest.mark.parametrize(("solver", "metric"), SOLVED)
def test_a_budget_of_equal_lengths_selects_as_many_documents_as_well(solver, metric, corpus):
    features, quality = (values[:150] for values in corpus)
    settings = SelectionSettings(solver=solver, metrics=metric, budget=30, policy_gradient=FEW_STEPS)
    by_tokens = settings.model_copy(update={"budget_by": "tokens", "budget": 30 * 7})
    also = also_of(features, quality)
    plain = select(features, quality, settings, also=also)
    filled = select(features, quality, by_tokens, tokens=np.full(150, 7), also=also)
    assert len(filled.indices) == 30
    if solver in {"mean_field", "greedy"}:
        # D has K in place of K - 1, which `range` cancels
        assert filled.objective == pytest.approx(plain.objective, abs=0.02)
    elif solver != "policy_gradient":  # learns from rewards that differ by rounding
        np.testing.assert_array_equal(filled.indices, plain.indices)


@pytest.mark.parametrize("n", [1, 3, 5])
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("solver", ["mean_field", "greedy"])
def test_where_everything_is_selected_nothing_is_gained(solver, metric, n):
    for seed in range(5):
        random = np.random.default_rng(seed)
        settings = SelectionSettings(solver=solver, metrics=metric, select_ratio=1.0, budget_by="tokens")
        tokens = random.integers(3, 60, n)
        found = select(random.normal(size=(n, 5)), random.normal(size=n), settings, tokens=tokens)
        assert found.indices.tolist() == list(range(n))
        assert found.gap == 0


@pytest.mark.parametrize("metrics", ["pairwise", "disf", "facility", {"pairwise": 1.0, "facility": 0.5}])
def test_token_budget_against_enumeration(metrics):
    short = []
    for seed in range(5):
        random = np.random.default_rng(seed)
        features, quality = random.normal(size=(10, 4)) + 0.3, random.normal(size=10)
        tokens = random.integers(10, 100, 10)
        chosen = SelectionSettings(metrics=metrics, lamb=0.5, budget_by="tokens", select_ratio=0.4)
        block = checked_block(features, quality, chosen, device="cpu", tokens=tokens)
        selection = select(features, quality, chosen, tokens=tokens, ranges=block.ranges)
        masks = any_masks(10)
        values = block.scaled(chosen.lamb).objective.value(masks[is_full(masks, block.knapsack)])
        best = float(values.max())
        assert selection.upper_bound >= best - 1e-5
        short.append((best - selection.objective) / (best - float(values.mean())))
    assert min(short) >= -1e-5  # the answer is one of the enumerated selections
    assert np.median(short) < 0.01
    assert np.mean(short) < 0.05


def test_shifting_quality_does_not_change_what_fills_the_tokens(corpus):
    features, quality = corpus
    tokens = np.random.default_rng(2).integers(5, 500, len(quality))
    chosen = SelectionSettings(metrics="pairwise", budget_by="tokens")
    first = select(features, quality, chosen, tokens=tokens)
    other = select(features, quality + 3, chosen, tokens=tokens)
    assert len(np.intersect1d(first.indices, other.indices)) >= 0.9 * len(first.indices)
    assert other.objective == pytest.approx(first.objective, abs=1e-3)


@pytest.mark.parametrize(("solver", "metric"), SOLVED)
@pytest.mark.parametrize("case", ["one", "identical", "constant quality", "flat", "wide", "opposite"])
def test_degenerate_blocks_give_finite_answers(case, solver, metric, ranges_once):
    random = np.random.default_rng(0)
    features, quality = random.normal(size=(30, 5)), random.random(30)
    if case == "one":
        features, quality = features[:1], quality[:1]
    elif case == "identical":
        features = np.repeat(features[:1], 30, axis=0)
    elif case == "constant quality":
        quality = np.full(30, 0.7)
    elif case == "flat":
        features = random.choice([-1.0, 1.0], size=(30, 1))
    elif case == "wide":
        features = random.normal(size=(30, 64))
    else:
        features = np.concatenate([features[:15], -features[:15]])
    settings = SelectionSettings(solver=solver, metrics=metric, select_ratio=0.2, policy_gradient=FEW_STEPS)
    ranges = ranges_once((case, metric), features, quality, settings)
    selection = select(features, quality, settings, ranges=ranges, also=also_of(features, quality))
    assert len(selection.indices) == max(1, round(0.2 * len(quality)))
    assert np.isfinite(selection.objective)
    assert np.isfinite(selection.inclusion).all()
    assert np.isfinite(list(selection.terms.values())).all()
    if selection.upper_bound is not None:
        assert selection.upper_bound >= selection.objective - 1e-5


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(1, 60),
    d=st.integers(1, 12),
    ratio=st.floats(0.01, 1),
    lamb=st.floats(0, 1),
    metric=st.sampled_from(sorted(METRICS)),
    normalize=st.sampled_from(["none", "range"]),
    seed=st.integers(0, 1000),
)
def test_any_shape_keeps_budget_bound_and_monotone_history(*, n, d, ratio, lamb, metric, normalize, seed):
    random = np.random.default_rng(seed)
    selection = select(
        random.normal(size=(n, d)),
        random.random(n),
        SelectionSettings(metrics=metric, select_ratio=ratio, lamb=lamb, normalize=normalize),
    )
    assert len(np.unique(selection.indices)) == max(1, round(ratio * n))
    # float32 features carry about 1e-7 of D, which range may blow up by up to a million
    scale = max(1.0, abs(selection.upper_bound))
    assert selection.objective <= selection.upper_bound + 1e-4 * scale
    objectives = [objective for _, _, objective in selection.history]
    assert objectives == sorted(objectives)
    assert selection.objective >= objectives[0] - 1e-4 * scale


@pytest.mark.parametrize("budget_by", ["documents", "tokens"])
def test_other_weights_share_what_does_not_depend_on_them(budget_by):
    random = np.random.default_rng(8)
    features, tokens = random.normal(size=(300, 16)).astype(np.float32), random.integers(10, 99, 300)
    common = {"select_ratio": 0.2, "budget_by": budget_by}
    every = SelectionSettings.model_validate(common | {"metrics": {"pairwise": 1, "facility": 1, "disf": 1}})
    shared = checked_block(features, random.random(300), every, device="cpu", tokens=tokens)
    for metrics, lamb in (({"pairwise": 1, "facility": 2}, 0.3), ({"disf": 1}, 0.7)):
        settings = SelectionSettings.model_validate(common | {"metrics": metrics, "lamb": lamb})
        quality = random.random(300).astype(np.float32)
        own = checked_block(features, quality, settings, device="cpu", tokens=tokens)
        other = shared.with_weights(own.quality, settings)
        assert other.ranges.quality == own.ranges.quality
        for name, term in own.ranges.metrics.items():
            assert other.ranges.metrics[name].base == pytest.approx(term.base, abs=1e-6)
        first, second = (one.solve(History(), lamb)[1].mask for one in (own, other))
        assert (first & second).sum() / (first | second).sum() > 0.9
    assert other.metrics["disf"] is shared.metrics["disf"]
