"""A block, solved by every solver: budgets, determinism, proof by enumeration, degenerate documents."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from fineweb_mask.models.selection.block import BlockSolver
from fineweb_mask.models.selection.inputs import SelectorInputs, Targets
from fineweb_mask.models.selection.selector import select
from fineweb_mask.models.settings.selection import SelectionSettings
from fineweb_mask.models.settings.selectors.registry import SELECTORS
from tests.models.selection.enumerable import METRICS, full_masks

FEW_STEPS = {"n_epochs": 5, "n_rollout": 8}
BOUNDED = [(solver, metric) for solver in ("mean_field", "greedy") for metric in METRICS]
SOLVED = [*BOUNDED, *((solver, "pairwise") for solver in SELECTORS if (solver, "pairwise") not in BOUNDED)]
"""Selectors that do not maximise the objective read no metric: one is enough."""


def also_of(features, quality):
    """Return what some selectors read: two scores, three groups, targets of two tasks, importance weights."""
    random, n = np.random.default_rng(7), len(quality)
    examples = features[:: max(1, n // 6)]
    return SelectorInputs(
        scores={"one": quality, "two": random.random(n)},
        groups=random.integers(0, 3, n),
        targets=Targets(examples, np.arange(len(examples)) % 2),
        log_weights=random.normal(size=n),
    )


@pytest.mark.parametrize(("solver", "metric"), SOLVED)
def test_every_solver_gives_a_whole_answer_twice_the_same(solver, metric, corpus):
    features, quality = (values[:100] for values in corpus)
    chosen = SelectionSettings(solver=solver, metrics=metric, select_ratio=0.3, seed=3, policy_gradient=FEW_STEPS)
    first, second = (select(features, quality, chosen, also=also_of(features, quality)) for _ in range(2))
    assert (first.indices.dtype, first.indices.shape) == (np.int64, (30,))
    assert (np.diff(first.indices) > 0).all()
    assert (first.inclusion.dtype, first.inclusion.shape) == (np.float32, (100,))
    assert np.isfinite(first.inclusion).all()
    assert first.indices.tobytes() == second.indices.tobytes()
    assert first.inclusion.tobytes() == second.inclusion.tobytes()
    assert (first.objective, first.upper_bound) == (second.objective, second.upper_bound)
    terms = first.terms
    assert terms["mean_quality"] == pytest.approx(float(quality[first.indices].mean()), rel=1e-5)
    mixed = chosen.lamb * terms["quality"] + (1 - chosen.lamb) * terms["diversity"]
    assert first.objective == pytest.approx(mixed, abs=1e-6)


@pytest.mark.parametrize("normalize", ["none", "range"])
@pytest.mark.parametrize("budget_by", ["documents", "tokens"])
@pytest.mark.parametrize("metrics", ["disf", {"pairwise": 1.0, "facility": 0.5}], ids=str)
def test_certificate_and_answer_against_enumeration(metrics, budget_by, normalize):
    common = {"metrics": metrics, "budget_by": budget_by, "select_ratio": 0.4, "normalize": normalize}
    for seed, lamb in enumerate((0.0, 0.5, 1.0)):
        random = np.random.default_rng(seed)
        features, quality = random.normal(size=(9, 4)) + 0.3, random.normal(size=9)
        tokens, chosen = random.integers(10, 100, 9), SelectionSettings(lamb=lamb, **common)
        block = BlockSolver(features, quality, chosen, device="cpu", tokens=tokens)
        selection = select(features, quality, chosen, tokens=tokens, ranges=block.ranges)
        values = block.objective.value(full_masks(block.budget))
        assert float(values.max()) + 1e-5 >= selection.objective >= float(values.mean())
        assert selection.upper_bound >= float(values.max()) - 1e-5
        assert 0 <= selection.gap <= 1


@pytest.mark.parametrize("metric", METRICS)
def test_ranges_are_the_same_for_every_solver(metric, corpus):
    few = [values[:60] for values in corpus]
    solvers = ("mean_field", "greedy", "policy_gradient", "random")
    settings = [SelectionSettings(metrics=metric, solver=solver) for solver in solvers]
    ranges = [BlockSolver(*few, one, device="cpu").ranges for one in settings]
    assert all(one == ranges[0] for one in ranges)


def test_lamb_one_is_top_quality_where_near_duplicates_are_not_charged(corpus):
    features, quality = corpus
    best = select(features, quality, SelectionSettings(lamb=1.0, near_duplicates=None))
    assert set(best.indices) == set(np.argsort(-quality)[:20])
    assert best.objective == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize(("solver", "metric"), SOLVED)
def test_token_budget_is_full_and_never_exceeded(solver, metric, corpus):
    features, quality = (values[:80] for values in corpus)
    tokens = np.random.default_rng(2).lognormal(5, 1, len(quality)).astype(int) + 1
    common = {"solver": solver, "metrics": metric, "policy_gradient": FEW_STEPS, "near_duplicates": None}
    settings, also = SelectionSettings(select_ratio=0.2, budget_by="tokens", **common), also_of(features, quality)
    selection = select(features, quality, settings, tokens=tokens, also=also)
    room = round(0.2 * int(tokens.sum())) - int(tokens[selection.indices].sum())
    assert 0 <= room < np.delete(tokens, selection.indices).min()
    mean = (quality * tokens)[selection.indices].sum() / round(0.2 * int(tokens.sum()))  # over the budget
    assert selection.terms["mean_quality"] == pytest.approx(mean, rel=1e-5)
    if (solver, metric) in BOUNDED:
        assert selection.random_objective < selection.objective <= selection.upper_bound


@pytest.mark.parametrize(("solver", "metric"), SOLVED)
def test_a_budget_of_equal_lengths_selects_as_many_documents_as_well(solver, metric, corpus):
    features, quality = (values[:80] for values in corpus)
    settings = SelectionSettings(solver=solver, metrics=metric, budget=16, policy_gradient=FEW_STEPS)
    by_tokens = settings.model_copy(update={"budget_by": "tokens", "budget": 16 * 7})
    also = also_of(features, quality)
    plain = select(features, quality, settings, also=also)
    filled = select(features, quality, by_tokens, tokens=np.full(80, 7), also=also)
    assert len(filled.indices) == 16
    if (solver, metric) in BOUNDED:
        # D has K instead of K - 1, which `range` cancels
        assert filled.objective == pytest.approx(plain.objective, abs=0.02)
    elif solver != "policy_gradient":  # learns from rewards that differ by rounding
        np.testing.assert_array_equal(filled.indices, plain.indices)


@pytest.mark.parametrize(("solver", "metric"), BOUNDED)
def test_where_everything_is_selected_nothing_is_gained(solver, metric):
    common = {"select_ratio": 1.0, "budget_by": "tokens", "near_duplicates": None}
    for seed, n in enumerate((1, 1, 3, 5)):
        random = np.random.default_rng(seed)
        settings, tokens = SelectionSettings(solver=solver, metrics=metric, **common), random.integers(3, 60, n)
        found = select(random.normal(size=(n, 5)), random.normal(size=n), settings, tokens=tokens)
        assert found.indices.tolist() == list(range(n))
        assert found.gap == 0


DRAWN = np.random.default_rng(0).normal(size=(30, 64))
DEGENERATE = {
    "one": DRAWN[:1],
    "identical": np.repeat(DRAWN[:1, :5], 30, axis=0),
    "flat": np.sign(DRAWN[:, :1]),
    "wide": DRAWN,
    "opposite": np.concatenate([DRAWN[:15, :5], -DRAWN[:15, :5]]),
}


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("case", [*DEGENERATE, "constant quality"])
def test_degenerate_blocks_give_finite_answers(case, metric):
    features = DEGENERATE.get(case, DRAWN[:, :5])
    quality = np.full(30, 0.7) if case == "constant quality" else np.random.default_rng(1).random(len(features))
    settings = SelectionSettings(metrics=metric, select_ratio=0.2, policy_gradient=FEW_STEPS, near_duplicates=None)
    ranges = BlockSolver(features, quality, settings, device="cpu").ranges
    for solver in [solver for solver, of in SOLVED if of == metric]:
        own = settings.model_copy(update={"solver": solver})
        selection = select(features, quality, own, ranges=ranges, also=also_of(features, quality))
        assert len(selection.indices) == max(1, round(0.2 * len(quality)))
        assert np.isfinite([selection.objective, *selection.inclusion, *selection.terms.values()]).all()
        if selection.upper_bound is not None:
            assert selection.upper_bound >= selection.objective - 1e-5


@hypothesis_settings(max_examples=12)
@given(
    n=st.integers(1, 40),
    d=st.integers(1, 12),
    ratio=st.floats(0.01, 1),
    lamb=st.floats(0, 1),
    metric=st.sampled_from(sorted(METRICS)),
    normalize=st.sampled_from(["none", "range"]),
    seed=st.integers(0, 1000),
)
def test_any_shape_keeps_budget_and_bound(*, n, d, ratio, lamb, metric, normalize, seed):
    random = np.random.default_rng(seed)
    selection = select(
        random.normal(size=(n, d)),
        random.random(n),
        SelectionSettings(metrics=metric, select_ratio=ratio, lamb=lamb, normalize=normalize, near_duplicates=None),
    )
    assert len(np.unique(selection.indices)) == max(1, round(ratio * n))
    # float32 features carry about 1e-7 of D, which range may blow up by up to a million
    scale = max(1.0, abs(selection.upper_bound))
    assert selection.objective <= selection.upper_bound + 1e-4 * scale
