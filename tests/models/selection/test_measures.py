"""Measures of selections against plain references."""

import numpy as np
import pytest

from fineweb_mask.models.selection.measures import (
    FalseBoundError,
    intersections,
    jaccard,
    measured,
    near_duplicate_rate,
    relative_gap,
)
from fineweb_mask.models.selection.selector import select
from fineweb_mask.models.settings.selection import METRICS, SelectionSettings


def test_jaccard_is_that_of_sets():
    masks = np.random.default_rng(1).random((5, 200)) < 0.3
    masks[4] = False
    sets = [set(np.flatnonzero(mask)) for mask in masks]
    expected = [[len(a & b) / len(a | b) if a | b else 1.0 for b in sets] for a in sets]
    parts = intersections(masks[:, :90]) + intersections(masks[:, 90:])
    np.testing.assert_allclose(jaccard(parts), expected)


def test_near_duplicates_are_those_with_another_one_close(corpus):
    features, quality = corpus
    cosines = features @ features.T
    np.fill_diagonal(cosines, -1)
    for indices in (np.arange(200), np.arange(15, 50), np.array([0, 30])):
        expected = (cosines[np.ix_(indices, indices)].max(1) >= 0.9).mean()
        assert expected > 0
        assert measured(features, quality, indices)["near_duplicates"] == pytest.approx(expected)
    assert measured(features, quality, np.array([0]))["near_duplicates"] == 0.0
    assert near_duplicate_rate(np.array([0.8, 0.9, 0.85]), threshold=0.85) == pytest.approx(2 / 3)
    assert near_duplicate_rate(np.empty(0)) is None


def test_the_gap_is_relative_to_a_random_selection():
    assert relative_gap(0.75, 1.0, 0.5) == 0.5
    assert relative_gap(0.75, None, 0.5) is None
    assert relative_gap(0.5, 0.5, 0.5) == 0.0  # nothing varies
    assert relative_gap(1.0 + 1e-7, 1.0, 0.5) == 0.0  # rounding


@pytest.mark.parametrize(("objective", "bound"), [(0.7771, 0.0838), (-2.0, -2.1), (2000.0, 1990.0)])
def test_a_bound_below_the_objective_is_an_error(objective, bound):
    with pytest.raises(FalseBoundError, match="exceeds its upper bound"):
        relative_gap(objective, bound, bound - 1)


@pytest.mark.parametrize("metric", METRICS)
def test_raw_values_are_those_of_the_selection_that_maximised_them(corpus, metric):
    features, quality = corpus
    selection = select(features, quality, SelectionSettings(metrics=metric, select_ratio=0.2))
    found = measured(features, quality, selection.indices)
    assert list(found) == ["mean_quality", "pairwise", "facility", "disf", "near_duplicates"]  # as manifests have it
    assert found[metric] == pytest.approx(selection.terms[metric], rel=1e-5)
    assert found["mean_quality"] == pytest.approx(quality[selection.indices].mean(), rel=1e-5)
