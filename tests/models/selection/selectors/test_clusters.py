"""SemDeDup, D4 and k-means-quality sampling against their definitions."""

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fineweb_mask.models.selection import SelectionSettings, select
from fineweb_mask.models.selection.selectors.clusters import fitted_budgets, priority_by_budget, solve_semdedup
from fineweb_mask.models.settings.selectors.registry import SELECTORS, SelectorEntry


def arc(*degrees):
    angles = np.deg2rad(degrees)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


ONE = {"n_clusters": 1}


@pytest.mark.parametrize("keep", ["quality", "hard", "easy"])
def test_semdedup_drops_near_duplicates_first(keep, corpus, selected):
    features, quality = corpus
    copies = np.concatenate([features[100:150], features[100:150]])  # every document twice
    scores = np.concatenate([quality[:50], quality[:50] + 0.1])
    found = selected("semdedup", copies, scores, select_ratio=0.5, options={"keep": keep}, constants={"n_clusters": 4})
    assert len(set((found.indices % 50).tolist())) == 50
    if keep == "quality":
        assert (found.indices >= 50).all()


def test_semdedup_with_eps_keeps_one_of_identical_documents_however_large_the_budget(selected):
    features = np.concatenate([arc(0, 0, 0), arc(60, 120)])
    found = selected("semdedup", features, [3, 2, 1, 0, 0], budget=5, options={"eps": 0.05}, constants=ONE)
    assert found.indices.tolist() == [0, 3, 4]
    all_kept = selected("semdedup", features, [3, 2, 1, 0, 0], budget=5, options={"eps": 0.0}, constants=ONE)
    assert len(all_kept.indices) == 5  # only a cosine above 1 would be dropped


def test_d4_selects_the_farthest_from_the_centre(selected):
    constants = ONE | {"dedup_ratio": 1.0}
    found = selected("d4", arc(-50, -10, 0, 10, 40), np.zeros(5), budget=2, constants=constants)
    assert found.indices.tolist() == [0, 4]


def test_d4_deduplicates_before_it_clusters_again(selected):
    # The two copies at 80 degrees are the farthest from the centre: one of them is dropped, the other is taken.
    features = arc(80, 80, -30, 0, 5, 10)
    found = selected("d4", features, np.zeros(6), budget=2, constants={"dedup_ratio": 5 / 6} | ONE)
    assert sorted(np.rad2deg(np.arctan2(*features[found.indices].T[::-1])).round()) == [-30, 80]


def test_kmq_gives_clusters_by_size(selected):
    features = np.concatenate(
        [np.tile([[1.0, 0]], (2, 1)), np.tile([[0, 1.0]], (10, 1)), np.tile([[-1.0, 0]], (10, 1))]
    )
    features += 1e-3 * np.random.default_rng(0).normal(size=features.shape)
    found = selected("kmq", features, np.zeros(22), budget=11, seed=5, constants={"n_clusters": 3})
    assert np.histogram(found.indices, [0, 2, 12, 22])[0].tolist() == [1, 5, 5]


def test_kmq_samples_by_quality_inside_a_cluster(corpus, selected):
    features, quality = corpus
    found = [selected("kmq", features, quality, constants=ONE, seed=seed).indices for seed in range(20)]
    weights = np.exp((quality - quality.mean()) / quality.std())
    mean = np.mean([quality[indices].mean() for indices in found])
    assert quality.mean() + 0.1 < mean < (weights @ quality) / weights.sum() + 0.05


@given(st.lists(st.tuples(st.floats(0, 20), st.integers(0, 12)), min_size=1, max_size=8), st.data())
def test_budgets_add_up_and_are_the_nearest_to_what_is_wanted(clusters, data):
    wanted, sizes = (torch.tensor(column) for column in zip(*clusters, strict=True))
    total = data.draw(st.integers(0, int(sizes.sum())))
    budgets = fitted_budgets(wanted.double(), sizes, total)
    assert int(budgets.sum()) == total
    assert ((budgets >= 0) & (budgets <= sizes)).all()
    loss = float((budgets - wanted).square().sum())
    for giver in budgets.nonzero()[:, 0]:  # no document moved from one cluster to another is better
        for taker in (budgets < sizes).nonzero()[:, 0]:
            moved = budgets.clone()
            moved[giver] -= 1
            moved[taker] += 1
            assert float((moved - wanted).square().sum()) >= loss - 1e-4 * max(1.0, loss)


def test_the_first_by_priority_are_as_many_of_each_cluster_as_its_budget():
    random = np.random.default_rng(1)
    labels, values = torch.from_numpy(random.integers(0, 4, 50)), torch.from_numpy(random.random(50))
    budgets = torch.tensor([3, 0, 5, 2])
    first = priority_by_budget(labels, values, budgets).topk(10).indices
    assert torch.bincount(labels[first], minlength=4).tolist() == budgets.tolist()
    for label in (0, 2, 3):
        own = values[labels == label].sort(descending=True).values[: budgets[label]]
        assert sorted(values[first[labels[first] == label]].tolist(), reverse=True) == own.tolist()


@pytest.mark.parametrize("budget", [{"budget": 5}, {"budget": 50, "budget_by": "tokens"}])
def test_what_semdedup_drops_is_not_selected_where_near_duplicates_are_forbidden(budget, monkeypatch):
    features = np.concatenate([arc(0, 0, 0), arc(60, 150)])
    settings = SelectionSettings(
        solver="semdedup", near_duplicates={"forbid": True, "threshold": 0.99}, semdedup={"eps": 0.6}, **budget
    )
    monkeypatch.setitem(SELECTORS, "semdedup", SelectorEntry(partial(solve_semdedup, n_clusters=1), ""))
    found = select(features, [3, 2, 1, 0, 0], settings, tokens=np.full(5, 10))
    assert found.indices.tolist() == [0, 4]  # 60 degrees are a cosine of 0.5: dropped, and never near anyone
