"""A sweep: as good as single selections, monotone, the same on every run."""

import numpy as np
import pytest

from fineweb_mask.models.comparison.sweep import sweep
from fineweb_mask.models.runtime import progress
from fineweb_mask.models.selection import SelectionInputError, SelectionSettings, select
from fineweb_mask.models.selection.selector import term_ranges

LAMBS = [0.0, 0.1, 0.5, 1.0]
BELOW = 1e-6  # of the range from random to best: rounding

pytestmark = pytest.mark.usefixtures("one_thread")


def corpus(kind, n=300, d=24):
    dice = np.random.default_rng(7)
    features = dice.normal(size=(n, d)).astype(np.float32)
    if kind == "clustered":
        features = 0.3 * features + dice.normal(size=(15, d)).astype(np.float32)[dice.integers(0, 15, n)]
    return features, (dice.normal(size=n) + features[:, 0]).astype(np.float32)


@pytest.mark.parametrize(
    ("kind", "metrics"),
    [
        ("clustered", "pairwise"),
        ("random", "disf"),
        ("clustered", "facility"),
        ("random", {"pairwise": 1, "disf": 0.5}),
    ],
)
def test_every_value_is_as_good_as_a_selection_of_its_own(kind, metrics):
    features, quality = corpus(kind)
    settings = SelectionSettings(metrics=metrics, select_ratio=0.2, near_duplicates=None)
    swept = sweep(features, quality, settings, LAMBS)
    for lamb, selection, _ in swept:
        cold = select(features, quality, settings.model_copy(update={"lamb": lamb}))
        assert selection.objective >= cold.objective - BELOW * (cold.objective - cold.random_objective)
        assert selection.objective <= cold.upper_bound + 1e-6  # quality is summed in float32
        assert selection.random_objective == cold.random_objective
        assert len(selection.indices) == 60


def test_quality_rises_and_diversity_falls_along_the_frontier():
    features, quality = corpus("clustered")
    settings = SelectionSettings(metrics="facility", near_duplicates=None)
    swept = sweep(features, quality, settings, [0.9, 0.1, 0.5, 0.1, 1, 0])
    assert [one.lamb for one in swept] == [0, 0.1, 0.5, 0.9, 1]
    qualities = [one.selection.terms["mean_quality"] for one in swept]
    diversities = [one.selection.terms["facility"] for one in swept]
    assert qualities == sorted(qualities)
    assert diversities == sorted(diversities, reverse=True)
    assert set(swept[-1].selection.indices) == set(np.argsort(-quality, kind="stable")[:30])


def test_it_is_the_same_on_every_run_whatever_solver_and_lamb_the_settings_name():
    features, quality = corpus("random")
    first = sweep(features, quality, SelectionSettings(metrics="disf"), LAMBS)
    again = sweep(features, quality, SelectionSettings(metrics="disf", solver="random", lamb=0.2), LAMBS)
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one.selection.indices, other.selection.indices)
        assert one.selection.objective == other.selection.objective


def test_ranges_found_before_make_the_same_selections():
    features, quality = corpus("clustered")
    settings = SelectionSettings(metrics="disf", lamb=0.3)
    ranges = term_ranges(features, quality, settings)
    for found in (
        [select(features, quality, settings), select(features, quality, settings, ranges=ranges)],
        [sweep(features, quality, settings, [0.5], ranges=given)[0].selection for given in (None, ranges)],
    ):
        np.testing.assert_array_equal(found[0].indices, found[1].indices)
        assert found[0].terms == found[1].terms


def test_ranges_of_other_metrics_are_refused():
    features, quality = corpus("random", n=60)
    ranges = term_ranges(features, quality, SelectionSettings(metrics={"facility": 1, "disf": 1}))
    with pytest.raises(SelectionInputError, match=r"they are of \['disf', 'facility'\]"):
        select(features, quality, SelectionSettings(metrics="facility"), ranges=ranges)


@pytest.mark.parametrize("metrics", ["pairwise", "facility"])
def test_a_budget_of_tokens_is_kept_at_every_value_and_the_frontier_is_monotone(metrics):
    features, quality = corpus("clustered", n=200)
    tokens = np.random.default_rng(2).integers(5, 200, 200)
    settings = SelectionSettings(budget_by="tokens", select_ratio=0.3, metrics=metrics, near_duplicates=None)
    ranges = term_ranges(features, quality, settings, tokens=tokens)
    swept = [one.selection for one in sweep(features, quality, settings, [0, 0.5, 1], tokens=tokens, ranges=ranges)]
    for one in swept:
        used, left = int(tokens[one.indices].sum()), np.delete(tokens, one.indices)
        assert 0 <= round(0.3 * tokens.sum()) - used < left.min()
        assert one.objective <= one.upper_bound
    for term, sign in (("quality", 1), ("diversity", -1)):
        values = [sign * one.terms[term] for one in swept]
        assert values == sorted(values)


def test_progress_is_reported_before_each_value(monkeypatch):
    monkeypatch.setattr(progress, "SECONDS", 0.0)
    features, quality = corpus("random", n=60)
    reported = []
    with progress.reporting_to(lambda _, steps: reported.append(steps[0])):
        sweep(features, quality, SelectionSettings(), [0, 1])
    found = dict.fromkeys(step.done for step in reported if step.what == "values of lamb")
    assert list(found) == [0, 1, 2]


@pytest.mark.parametrize("lambs", [[], [-0.1], [0.5, 1.1], [float("nan")]])
def test_values_outside_0_to_1_are_refused(lambs):
    with pytest.raises(SelectionInputError, match="from 0 to 1"):
        sweep(*corpus("random", n=20), SelectionSettings(), lambs)
