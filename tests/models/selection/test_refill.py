"""A selection that lost documents is filled up again."""

import numpy as np
import pytest

from fineweb_mask.models.selection import SelectionSettings, select
from fineweb_mask.models.selection.refill import refill

N = 400


@pytest.fixture(scope="module")
def corpus():
    return clusters(0)


def clusters(seed):
    random = np.random.default_rng(seed)
    centres = random.normal(size=(20, 16))
    features = (centres[random.integers(20, size=N)] + random.normal(size=(N, 16))).astype(np.float32)
    return features, random.random(N).astype(np.float32), random.integers(5, 60, N)


METRICS = pytest.mark.parametrize("metrics", [{"pairwise": 1}, {"facility": 1, "disf": 1}])
BUDGETS = pytest.mark.parametrize("budget", [{}, {"budget_by": "tokens"}], ids=str)


@METRICS
@BUDGETS
def test_what_was_selected_stays_and_the_next_best_fill_the_budget(corpus, metrics, budget):
    features, quality, tokens = corpus
    settings = SelectionSettings(metrics=metrics, select_ratio=0.2, **budget)
    first = select(features, quality, settings, tokens=tokens)
    gone = first.indices[::10]
    left = np.setdiff1d(np.arange(N), gone)
    kept = np.isin(left, first.indices)
    again = refill(features[left], quality[left], settings, kept, tokens=tokens[left])
    selected = np.zeros(len(left), dtype=bool)
    selected[again.indices] = True
    if budget:
        limit = round(0.2 * tokens[left].sum())
        used = int(tokens[left][selected].sum())
        assert limit - tokens[left][~selected].min() < used <= limit
    else:
        assert selected.sum() == round(0.2 * len(left))
    assert (kept & ~selected).sum() <= len(gone)  # the budget is a share of fewer documents
    assert again.upper_bound is None or again.objective <= again.upper_bound + 1e-6


@METRICS
@BUDGETS
def test_a_selection_that_is_filled_up_gains_nearly_what_one_from_scratch_does(metrics, budget):
    settings, shares = SelectionSettings(metrics=metrics, select_ratio=0.2, **budget), []
    for seed in range(4):
        features, quality, tokens = clusters(seed)
        first = select(features, quality, settings, tokens=tokens)
        left = np.setdiff1d(np.arange(N), first.indices[::10])
        corpus = features[left], quality[left], settings
        again = refill(*corpus, np.isin(left, first.indices), tokens=tokens[left])
        anew = select(*corpus, tokens=tokens[left])
        gained, possible = (found.objective - found.random_objective for found in (again, anew))
        shares.append(gained / possible)
    assert np.mean(shares) > 0.94, shares


def test_what_is_added_is_not_alike():
    features = np.repeat(np.eye(8, dtype=np.float32), 3, axis=0)
    kept = np.zeros(24, dtype=bool)
    kept[[0, 3]] = True
    found = refill(features, np.ones(24, dtype=np.float32), SelectionSettings(metrics="pairwise", budget=6), kept)
    assert len(set(found.indices // 3)) == 6


def test_of_a_selection_that_is_too_large_the_worst_go(corpus):
    features, quality, _ = corpus
    settings = SelectionSettings(metrics="pairwise", lamb=1.0, budget=10)
    kept = quality >= np.sort(quality)[-20]
    found = refill(features, quality, settings, kept)
    assert set(found.indices) == set(np.argsort(quality)[-10:])
