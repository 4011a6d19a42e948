"""Measures of selections against plain references."""

import math

import numpy as np
import pytest

from fineweb_mask.models.selection import SelectionSettings, select
from fineweb_mask.models.selection.measures import (
    FalseBoundError,
    Measures,
    coverage,
    intersections,
    jaccard,
    near_duplicate_rate,
    relative_gap,
)
from fineweb_mask.models.settings.selection import METRICS


@pytest.fixture(scope="module")
def corpus():
    dice = np.random.default_rng(5)
    features = dice.normal(size=(120, 12)).astype(np.float32)
    features[60:80] = features[:20] + 0.01 * dice.normal(size=(20, 12)).astype(np.float32)  # near-copies
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    return features, dice.normal(size=120).astype(np.float32)


def test_jaccard_is_that_of_sets():
    masks = np.random.default_rng(1).random((5, 200)) < 0.3
    masks[4] = False
    sets = [set(np.flatnonzero(mask)) for mask in masks]
    expected = [[len(a & b) / len(a | b) if a | b else 1.0 for b in sets] for a in sets]
    np.testing.assert_allclose(jaccard(intersections(masks)), expected)
    parts = intersections(masks[:, :90]) + intersections(masks[:, 90:])
    np.testing.assert_array_equal(parts, intersections(masks))


def test_near_duplicates_are_those_with_another_one_close(corpus):
    features, quality = corpus
    cosines = features @ features.T
    np.fill_diagonal(cosines, -1)
    for indices in (np.arange(120), np.arange(30, 90), np.array([0, 60])):
        expected = (cosines[np.ix_(indices, indices)].max(1) >= 0.95).mean()
        assert Measures(features, quality).of(indices)["near_duplicates"] == pytest.approx(expected)
    assert Measures(features, quality).of(np.arange(120))["near_duplicates"] == pytest.approx(40 / 120)
    assert Measures(features, quality).of(np.array([0]))["near_duplicates"] == 0.0
    assert Measures(features[[3, 3]], quality[:2]).of(np.array([0, 1]))["near_duplicates"] == 1.0


def test_near_duplicates_are_counted_from_the_threshold_on():
    assert near_duplicate_rate(np.array([0.9, 0.8999, 1.0, -1.0])) == 0.5
    assert near_duplicate_rate(np.array([0.8, 0.9]), threshold=0.85) == 0.5
    assert near_duplicate_rate(np.empty(0)) is None


def test_the_gap_is_relative_to_a_random_selection():
    assert relative_gap(0.75, 1.0, 0.5) == 0.5
    assert relative_gap(0.75, None, 0.5) is None
    assert relative_gap(0.5, 0.5, 0.5) == 0.0  # nothing varies
    assert relative_gap(1.0 + 1e-7, 1.0, 0.5) == 0.0  # rounding


@pytest.mark.parametrize(("objective", "bound"), [(0.7771, 0.0838), (1.1, 1.0), (-2.0, -2.1), (2000.0, 1990.0)])
def test_a_bound_below_the_objective_is_an_error(objective, bound):
    with pytest.raises(FalseBoundError, match="exceeds its upper bound"):
        relative_gap(objective, bound, bound - 1)


def test_coverage_counts_topics_and_their_evenness():
    assert coverage([5, 5, 5, 5]) == (4, pytest.approx(4.0), 0.25)
    assert coverage([10, 0]) == (1, pytest.approx(1.0), 0.0)
    assert coverage([0, 0]) == coverage([]) == (0, 0.0, 0.0)
    spread = coverage([6, 3, 1])
    entropy = -sum(share * math.log(share) for share in (0.6, 0.3, 0.1))
    assert spread == (3, pytest.approx(math.exp(entropy)), pytest.approx(0.1))


def test_measures_are_written_in_one_order(corpus):
    """The manifests of masks hold them in this order, and equal inputs give equal bytes."""
    measured = Measures(*corpus).of(np.arange(3))
    assert list(measured) == ["mean_quality", "pairwise", "facility", "disf", "near_duplicates"]


@pytest.mark.parametrize("metric", METRICS)
def test_raw_values_are_those_of_the_selection_that_maximised_them(corpus, metric):
    features, quality = corpus
    selection = select(features, quality, SelectionSettings(metrics=metric, select_ratio=0.2))
    measured = Measures(features, quality).of(selection.indices)
    assert measured[metric] == pytest.approx(selection.terms[metric], rel=1e-5)
    assert measured["mean_quality"] == pytest.approx(quality[selection.indices].mean(), rel=1e-5)
    chosen = features[selection.indices] @ features[selection.indices].T
    k = len(chosen)
    assert measured["pairwise"] == pytest.approx(-(chosen.sum() - np.trace(chosen)) / (k * (k - 1)), rel=1e-3)
    reach = np.clip(features @ features[selection.indices].T, 0, 1).max(1).mean()
    assert measured["facility"] == pytest.approx(reach, rel=1e-5)
