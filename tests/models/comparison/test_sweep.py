"""A sweep: as good as single selections, monotone, the same on every run."""

import numpy as np
import pytest

from fineweb_mask.models.comparison.sweep import sweep
from fineweb_mask.models.runtime.threads import same_threads
from fineweb_mask.models.selection.block import BlockSolver
from fineweb_mask.models.selection.inputs import SelectionInputError
from fineweb_mask.models.selection.selector import select
from fineweb_mask.models.settings.selection import SelectionSettings

LAMBS = [0.0, 0.3, 1.0]
BELOW = 1e-6  # of the range from random to best: rounding

pytestmark = pytest.mark.usefixtures("one_thread")


def corpus(kind, n=60, d=8):
    dice = np.random.default_rng(7)
    features = dice.normal(size=(n, d)).astype(np.float32)
    if kind == "clustered":
        features = 0.3 * features + dice.normal(size=(15, d)).astype(np.float32)[dice.integers(0, 15, n)]
    return features, (dice.normal(size=n) + features[:, 0]).astype(np.float32)


@pytest.mark.parametrize(
    ("kind", "metrics"),
    [
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
        assert len(selection.indices) == 12


def test_quality_rises_and_diversity_falls_along_the_frontier():
    features, quality = corpus("clustered")
    settings = SelectionSettings(metrics="facility", near_duplicates=None)
    swept = sweep(features, quality, settings, [0.9, 0.1, 0.5, 0.1, 1, 0])
    assert [one.lamb for one in swept] == [0, 0.1, 0.5, 0.9, 1]
    qualities = [one.selection.terms["mean_quality"] for one in swept]
    diversities = [one.selection.terms["facility"] for one in swept]
    assert qualities == sorted(qualities)
    assert diversities == sorted(diversities, reverse=True)
    assert set(swept[-1].selection.indices) == set(np.argsort(-quality, kind="stable")[:6])


def test_it_is_the_same_on_every_run_whatever_solver_and_lamb_the_settings_name():
    features, quality = corpus("random")
    first = sweep(features, quality, SelectionSettings(metrics="disf"), LAMBS)
    again = sweep(features, quality, SelectionSettings(metrics="disf", solver="random", lamb=0.2), LAMBS)
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one.selection.indices, other.selection.indices)
        assert one.selection.objective == other.selection.objective


@pytest.mark.parametrize("metrics", ["pairwise", "facility"])
def test_a_budget_of_tokens_is_kept_at_every_value_and_the_frontier_is_monotone(metrics):
    features, quality = corpus("clustered", n=60)
    tokens = np.random.default_rng(2).integers(5, 200, 60)
    settings = SelectionSettings(budget_by="tokens", select_ratio=0.3, metrics=metrics, near_duplicates=None)
    with same_threads():
        ranges = BlockSolver(features, quality, settings, device="cpu", tokens=tokens).ranges
    swept = [one.selection for one in sweep(features, quality, settings, [0, 0.5, 1], tokens=tokens, ranges=ranges)]
    found = [one.selection for one in sweep(features, quality, settings, [0, 0.5, 1], tokens=tokens)]
    assert [one.terms for one in found] == [one.terms for one in swept]  # also with ranges found before
    for one in swept:
        used, left = int(tokens[one.indices].sum()), np.delete(tokens, one.indices)
        assert 0 <= round(0.3 * tokens.sum()) - used < left.min()
        assert one.objective <= one.upper_bound
    for term, sign in (("quality", 1), ("diversity", -1)):
        values = [sign * one.terms[term] for one in swept]
        assert values == sorted(values)


@pytest.mark.parametrize("lambs", [[], [-0.1], [0.5, 1.1], [float("nan")]])
def test_values_outside_0_to_1_are_refused(lambs):
    with pytest.raises(SelectionInputError, match="from 0 to 1"):
        sweep(*corpus("random", n=20), SelectionSettings(), lambs)
