"""`select` from end to end, with every solver: budgets, determinism, proof, bad inputs, devices."""

import itertools
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from fineweb_mask.models.selection import (
    Given,
    SelectionInputError,
    SelectionSettings,
    SelectorInputs,
    Targets,
    select,
)
from fineweb_mask.models.selection.block import checked_block
from fineweb_mask.models.selection.problem.normalisation import find_ranges
from fineweb_mask.models.selection.selector import term_ranges
from fineweb_mask.models.selection.solvers.mean_field import solve_mean_field
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
    mixed = 0.5 * terms["quality"] + 0.5 * terms["diversity"] - terms["near_duplicate_cost"]
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
    raw = SelectionSettings(normalize="none")
    return find_ranges(rows, torch.zeros(rows.n), raw, made, budget=budget, generator=generator).metrics[metric].random


@pytest.mark.parametrize(
    ("ratio", "n", "expected"), [(0.1, 25, 2), (0.1, 35, 4), (0.5, 5, 2), (0.001, 7, 1), (1.0, 9, 9)]
)
def test_budget_is_pythons_rounding_and_at_least_one(ratio, n, expected):
    random = np.random.default_rng(0)
    selection = select(random.normal(size=(n, 4)), random.random(n), SelectionSettings(select_ratio=ratio))
    assert len(selection.indices) == expected


def test_progress_receives_the_history(corpus):
    seen = []
    selection = select(*corpus, SelectionSettings(), progress=lambda *entry: seen.append(entry))
    assert seen == selection.history
    assert selection.history[-1][2] == pytest.approx(selection.objective, abs=1e-6)


@pytest.mark.parametrize("metric", METRICS)
def test_float16_and_torch_inputs_select_nearly_the_same(metric, corpus):
    features, quality = corpus
    chosen = SelectionSettings(metrics=metric, select_ratio=0.2)
    whole = select(features, quality, chosen)
    half = select(torch.from_numpy(features).half(), torch.from_numpy(quality), chosen)
    assert len(np.intersect1d(whole.indices, half.indices)) > 0.9 * len(whole.indices)
    assert half.objective == pytest.approx(whole.objective, abs=0.01)


def test_rows_are_normalised_and_inputs_left_alone(corpus):
    features, quality = corpus
    scaled = features * np.linspace(0.5, 20, len(features))[:, None].astype(np.float32)
    before = scaled.copy()
    scaled.flags.writeable = False
    assert (select(scaled, quality).indices == select(features, quality).indices).mean() > 0.95
    assert (scaled == before).all()


def test_lamb_trades_quality_for_diversity(corpus):
    terms = [select(*corpus, SelectionSettings(lamb=lamb)).terms for lamb in (0.05, 0.5, 0.95)]
    assert terms[0]["quality"] < terms[1]["quality"] < terms[2]["quality"]
    assert terms[0]["diversity"] > terms[1]["diversity"] > terms[2]["diversity"]


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("n_steps", [1, 3])
def test_few_steps_never_end_below_the_start(metric, n_steps, corpus, monkeypatch):
    entry = replace(SELECTORS["mean_field"], solve=partial(solve_mean_field, n_steps=n_steps, rounds=0))
    monkeypatch.setitem(SELECTORS, "mean_field", entry)
    selection = select(*corpus, SelectionSettings(metrics=metric, lamb=0.1))
    assert selection.objective >= selection.history[0][2] - 1e-9
    picks = metric != "facility"  # greedily, after annealing
    assert selection.history[-1][0] == n_steps + picks


def test_lamb_one_is_top_quality_where_near_duplicates_are_not_charged(corpus):
    features, quality = corpus
    best = select(features, quality, SelectionSettings(lamb=1.0, near_duplicates={"weight": 0}))
    assert set(best.indices) == set(np.argsort(-quality)[:40])
    assert best.objective == pytest.approx(1.0, abs=1e-5)


def test_several_metrics_are_bounded_and_better_than_random(corpus):
    selection = select(*corpus, SelectionSettings(metrics={"pairwise": 0.5, "facility": 0.3, "disf": 0.2}, lamb=0.3))
    assert selection.random_objective < selection.objective <= selection.upper_bound
    assert {"pairwise", "facility", "disf"} <= set(selection.terms)


def test_quality_columns_are_standardised_and_weighted(corpus):
    features, quality = corpus
    other = np.random.default_rng(1).random(len(quality)).astype(np.float32)
    columns = np.stack([quality * 1000, other, np.ones_like(quality)], axis=1)
    chosen = SelectionSettings(solver="top_quality")
    found = select(features, columns, chosen, quality_weights=[1.0, 0.0, 5.0])
    assert (found.indices == select(features, quality, chosen_one()).indices).all()


def chosen_one():
    return SelectionSettings(solver="top_quality")


@pytest.fixture(scope="module")
def ranges_once():
    """Find ranges once per case: they do not depend on the solver, and take longer than most solvers."""
    found = {}

    def ranges(case, features, quality, settings, tokens=None):
        if case not in found:
            found[case] = term_ranges(features, quality, settings, tokens=tokens)
        return found[case]

    return ranges


@pytest.mark.parametrize("weigh_by", ["tokens", "documents"])
@pytest.mark.parametrize(("solver", "metric"), SOLVED)
def test_token_budget_is_full_and_never_exceeded(solver, metric, weigh_by, corpus, ranges_once):
    features, quality = (values[:150] for values in corpus)
    tokens = np.random.default_rng(2).lognormal(5, 1, len(quality)).astype(int) + 1
    by_tokens = {"budget_by": "tokens", "weigh_by": weigh_by, "policy_gradient": FEW_STEPS}
    settings = SelectionSettings(solver=solver, metrics=metric, select_ratio=0.2, **by_tokens)
    ranges = ranges_once(("tokens", weigh_by, metric), features, quality, settings, tokens)
    selection = select(features, quality, settings, tokens=tokens, ranges=ranges, also=also_of(features, quality))
    room = round(0.2 * int(tokens.sum())) - int(tokens[selection.indices].sum())
    assert room >= 0
    assert room < np.delete(tokens, selection.indices).min()
    weights = tokens[selection.indices] if weigh_by == "tokens" else None
    assert selection.terms["mean_quality"] == pytest.approx(np.average(quality[selection.indices], weights=weights))
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


@pytest.mark.parametrize("weigh_by", ["tokens", "documents"])
@pytest.mark.parametrize("metrics", ["pairwise", "disf", "facility", {"pairwise": 1.0, "facility": 0.5}])
def test_token_budget_against_enumeration(metrics, weigh_by):
    short = []
    for seed in range(5):
        random = np.random.default_rng(seed)
        features, quality = random.normal(size=(10, 4)) + 0.3, random.normal(size=10)
        tokens = random.integers(10, 100, 10)
        chosen = SelectionSettings(metrics=metrics, budget_by="tokens", weigh_by=weigh_by, select_ratio=0.4)
        block = checked_block(features, quality, chosen, device="cpu", tokens=tokens)
        selection = select(features, quality, chosen, tokens=tokens, ranges=block.ranges(block.budget))
        masks = any_masks(10)
        values = block.scaled(block.budget, chosen.lamb).objective.value(masks[is_full(masks, block.knapsack)])
        best = float(values.max())
        assert selection.upper_bound >= best - 1e-5
        short.append((best - selection.objective) / (best - float(values.mean())))
    assert min(short) >= -1e-5  # the answer is one of the enumerated selections
    assert np.median(short) < 0.01
    assert np.mean(short) < (0.05 if weigh_by == "tokens" else 0.15)


def test_shifting_quality_does_not_change_what_fills_the_tokens(corpus):
    features, quality = corpus
    tokens = np.random.default_rng(2).integers(5, 500, len(quality))
    for weigh_by in ("tokens", "documents"):
        chosen = SelectionSettings(budget_by="tokens", weigh_by=weigh_by)
        first = select(features, quality, chosen, tokens=tokens)
        other = select(features, quality + 3, chosen, tokens=tokens)
        assert len(np.intersect1d(first.indices, other.indices)) >= 0.9 * len(first.indices)
        assert other.objective == pytest.approx(first.objective, abs=1e-3)


class Spread:
    """A user's metric: the spread of the first feature."""

    def __init__(self, features):
        self.values = torch.from_numpy(features[:, 0]).double()

    def value(self, masks):
        weights = masks.double() / masks.sum(1, keepdim=True)
        return weights @ self.values.square() - (weights @ self.values).square()


class DifferentiableSpread(Spread):
    def gradient(self, inclusion):
        k, pi = inclusion.sum(), inclusion.double()
        return (self.values.square() - 2 * self.values * (pi @ self.values) / k) / k


@pytest.mark.parametrize("normalize", ["none", "range"])
def test_own_metric_works_with_policy_gradient_at_once(normalize, corpus):
    features, quality = corpus
    chosen = SelectionSettings(
        solver="policy_gradient",
        metrics={},
        lamb=0.0,
        normalize=normalize,
        policy_gradient={"n_epochs": 100, "n_rollout": 32, "partial": 0.5},
    )
    selection = select(features, quality, chosen, own_metrics={"spread": (Spread(features), 1.0)})
    assert selection.terms["spread"] > 1.5 * features[:, 0].var()
    assert selection.upper_bound is None


def test_own_metric_with_a_gradient_works_with_mean_field(corpus):
    features, quality = corpus
    chosen = SelectionSettings(lamb=0.2)
    selection = select(features, quality, chosen, own_metrics={"spread": (DifferentiableSpread(features), 1.0)})
    assert selection.terms["spread"] > features[:, 0].var()
    assert selection.upper_bound is None
    assert selection.gap is None


def test_own_metric_without_gradient_is_refused_by_mean_field(corpus):
    with pytest.raises(SelectionInputError, match=r"gradient\(inclusion\).*policy_gradient"):
        select(*corpus, SelectionSettings(metrics={}), own_metrics={"spread": (Spread(corpus[0]), 1.0)})


def spoiled(array, row, value):
    array = array.copy()
    array[row] = value
    return array


@pytest.mark.parametrize(
    ("features", "quality", "message"),
    [
        (lambda f: spoiled(f, 7, np.nan), None, r"features row 7 .*embed"),
        (lambda f: spoiled(f, (9, 2), np.inf), None, r"features row 9 .*embed"),
        (lambda f: spoiled(f.astype(np.float64), (9, 2), 1e300), None, r"features row 9 .*infinite"),
        (lambda f: spoiled(f, 3, 0.0), None, r"features row 3 is a zero vector"),
        (lambda f: f[:, 0], None, r"features must have shape"),
        (lambda f: f[:0], lambda q: q[:0], r"features must have shape"),
        (lambda f: f.astype(str), None, r"features must hold numbers"),
        (lambda f: f[:-1], None, r"quality must have one row per row of features \(399\)"),
        (None, lambda q: spoiled(q, 11, np.nan), r"quality row 11 .*score"),
        (None, lambda q: spoiled(q, 12, -np.inf), r"quality row 12 .*score"),
        (None, lambda q: q[:, None, None], r"quality must have one row"),
    ],
)
def test_bad_input_is_named_with_row_and_remedy(features, quality, message, corpus):
    good_features, good_quality = corpus
    with pytest.raises(SelectionInputError, match=message):
        select(
            features(good_features) if features else good_features,
            quality(good_quality) if quality else good_quality,
        )


@pytest.mark.parametrize(
    "unfit",
    [
        {"select_ratio": 0.0},
        {"select_ratio": 1.1},
        {"budget": 0},
        {"lamb": 1.5},
        {"solver": "best"},
        {"metrics": {"pairwise": -1.0}},
        {"metrics": {"pairwse": 1.0}},
        {"budget": 10, "unknown": 1},
        {"weigh_by": "tokens"},
    ],
)
def test_unfit_settings_are_refused(unfit):
    with pytest.raises(ValidationError):
        SelectionSettings(**unfit)


@pytest.mark.parametrize(
    ("chosen", "tokens", "message"),
    [
        ({"budget": 401}, None, r"budget is 401 documents, but there are only 400"),
        ({"metrics": {}}, None, r"metrics is empty"),
        ({"budget_by": "tokens"}, None, r"pass tokens"),
        ({"budget_by": "tokens"}, np.ones(3), r"tokens must have one value"),
        ({"budget_by": "tokens"}, np.zeros(400), r"tokens row 0"),
        ({"budget_by": "tokens", "budget": 3}, np.full(400, 9), r"below the shortest document's 9"),
    ],
)
def test_settings_that_do_not_fit_the_data_are_refused(chosen, tokens, message, corpus):
    with pytest.raises(SelectionInputError, match=message):
        select(*corpus, SelectionSettings(**chosen), tokens=tokens)


def test_quality_has_a_weight_for_each_column(corpus):
    with pytest.raises(SelectionInputError, match="quality has 1 columns"):
        select(*corpus, SelectionSettings(), quality_weights=[1.0, 2.0])


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


def test_float16_sums_do_not_overflow():
    random = np.random.default_rng(0)
    features = np.full((300, 8), 60_000, dtype=np.float16)
    features[:, 0] = random.integers(-60_000, 60_000, 300)
    selection = select(features, random.random(300).astype(np.float32))
    assert np.isfinite(selection.objective)


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


def test_settings_alone_import_no_torch():
    code = "import sys, fineweb_mask.models.settings.selection; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("metric", METRICS)
def test_cuda_is_deterministic_and_as_good_as_the_cpu(metric, corpus):
    chosen = SelectionSettings(metrics=metric)
    first, second = (select(*corpus, chosen, device="cuda") for _ in range(2))
    assert first.indices.tobytes() == second.indices.tobytes()
    assert first.objective == pytest.approx(select(*corpus, chosen).objective, abs=0.01)


def test_gpu_benchmark_runs_small_on_the_cpu():
    root = Path(__file__).parents[3]
    command = [sys.executable, "-m", "benchmarks.selection_gpu", "--smoke"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("mean_field") == len(METRICS)
    assert done.stdout.count("policy_gradient") == len(METRICS)


def both_of(features, quality, given):
    return np.concatenate([features, given.vectors]), np.concatenate([quality, given.quality])


@pytest.mark.parametrize("metric", ["pairwise", "facility", "disf"])
def test_given_an_earlier_selection_the_best_of_both_together_is_found_and_bounded(metric):
    random = np.random.default_rng(5)
    features, quality = random.normal(size=(11, 3)) + 0.3, random.random(11)
    given = Given(random.normal(size=(4, 3)) + 0.3, random.random(4))
    chosen = SelectionSettings(metrics=metric, budget=3, normalize="none", near_duplicates={"weight": 0.5})
    found = select(features, quality, chosen, also=SelectorInputs(given=given))
    vectors, scores = both_of(features, quality, given)
    whole = checked_block(vectors, scores, chosen.model_copy(update={"budget": 7}), device="cpu")
    objective = whole.scaled(7, 0.5).objective

    def value(documents):
        mask = torch.zeros(15, dtype=torch.bool)
        mask[[*documents, 11, 12, 13, 14]] = True
        return objective.value_of(mask)

    best = max(value(documents) for documents in itertools.combinations(range(11), 3))
    assert len(found.indices) == 3
    assert found.objective == pytest.approx(value(found.indices.tolist()), abs=1e-5)
    assert found.objective >= best - 1e-3 * (best - found.random_objective)
    assert found.upper_bound >= best - 1e-5


def test_what_an_earlier_selection_holds_is_not_selected_again(corpus):
    """The first sixty documents are near-copies of the next sixty: given those, none of the first is worth taking."""
    features, quality = corpus
    settings = SelectionSettings(budget=40, lamb=0.3, near_duplicates={"threshold": 0.9})
    alone = select(features[:400], quality[:400], settings)
    given = Given(features[60:120], quality[60:120])
    among = np.r_[0:60, 120:400]
    found = select(features[among], quality[among], settings, also=SelectorInputs(given=given))

    def like(documents):
        cosines = features[documents] @ features[60:120].T
        return float((cosines.max(1) > 0.95).mean())

    taken = among[found.indices]
    assert len(taken) == 40
    assert like(taken) == 0
    plain = among[select(features[among], quality[among], settings).indices]
    assert like(plain) > 0
    assert alone.objective <= alone.upper_bound
    assert found.random_objective < found.objective <= found.upper_bound
    assert found.gap < 0.05


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"solver": "random"}, "given: an earlier selection needs solver: mean_field"),
        ({"near_duplicates": {"forbid": True}}, "and no near_duplicates.forbid"),
    ],
)
def test_settings_that_know_no_earlier_selection_are_refused(settings, message, corpus):
    features, quality = corpus
    also = SelectorInputs(given=Given(features[:3], quality[:3]))
    with pytest.raises(SelectionInputError, match=message):
        select(features, quality, settings, also=also)
    with pytest.raises(SelectionInputError, match="must have 16 dimensions, as those of the documents, received 5"):
        select(features, quality, also=SelectorInputs(given=Given(np.ones((2, 5)), np.ones(2))))


def test_earlier_documents_that_are_all_alike_are_held_and_own_metrics_are_refused_with_them():
    features, quality = np.ones((6, 3)), np.ones(6)
    also = SelectorInputs(given=Given(np.ones((2, 3)), np.ones(2)))
    assert len(select(features, quality, {"budget": 2}, also=also).indices) == 2

    class Nothing:
        def value(self, masks):
            return torch.zeros(len(masks))

        def gradient(self, inclusion):
            return torch.zeros_like(inclusion)

    with pytest.raises(SelectionInputError, match="given: own_metrics know nothing of earlier documents: leave"):
        select(features, quality, {"budget": 2}, also=also, own_metrics={"nothing": (Nothing(), 1.0)})
