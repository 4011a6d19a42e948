"""What selections are compared by, against plain references."""

import math

import numpy as np
import pytest

from fineweb_mask.models.selection import SelectionSettings, select
from fineweb_mask.models.selection.measures import Measures, coverage, intersections, jaccard, near_duplicate_rate
from fineweb_mask.models.selection.rows import Rows


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
    import torch

    features, _ = corpus
    cosines = features @ features.T
    np.fill_diagonal(cosines, -1)
    for threshold in (0.5, 0.95, 0.9999):
        expected = (cosines.max(1) >= threshold).mean()
        assert near_duplicate_rate(Rows(torch.from_numpy(features)), threshold) == pytest.approx(expected)
    assert near_duplicate_rate(Rows(torch.from_numpy(features))) == pytest.approx(40 / 120)
    assert near_duplicate_rate(Rows(torch.from_numpy(features[:1]))) == 0.0
    assert near_duplicate_rate(Rows(torch.from_numpy(features[[3, 3]]))) == 1.0


def test_coverage_counts_topics_and_their_evenness():
    assert coverage([5, 5, 5, 5]) == (4, pytest.approx(4.0), 0.25)
    assert coverage([10, 0]) == (1, pytest.approx(1.0), 0.0)
    assert coverage([0, 0]) == coverage([]) == (0, 0.0, 0.0)
    spread = coverage([6, 3, 1])
    entropy = -sum(share * math.log(share) for share in (0.6, 0.3, 0.1))
    assert spread == (3, pytest.approx(math.exp(entropy)), pytest.approx(0.1))


@pytest.mark.parametrize("metric", ["pairwise", "disf", "facility"])
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
