"""GIST against enumeration, and its distances."""

from itertools import combinations

import numpy as np
import pytest
import torch

from fineweb_mask.models.selection.rows import Rows
from fineweb_mask.models.selection.selectors.gist import apart, far_pair, farthest_pair, least_distance


def value(features, worth, chosen, budget, weight):
    distances = [np.linalg.norm(features[i] - features[j]) for i, j in combinations(chosen, 2)]
    return worth[list(chosen)].sum() / budget + weight * min(distances, default=0.0)


@pytest.mark.parametrize("weight", [0.0, 0.3, 3.0])
@pytest.mark.parametrize("seed", range(6))
def test_at_least_two_thirds_of_the_best_possible_is_reached(seed, weight, selected):
    random = np.random.default_rng(seed)
    n, budget = 11, 4
    features = random.normal(size=(n, 3))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    quality = random.random(n)
    worth = (quality - quality.min()) / (quality.max() - quality.min())
    options = {"diversity_weight": weight, "distances": 12}
    found = selected("gist", features, quality, budget=budget, options=options)
    sets = [chosen for size in range(1, budget + 1) for chosen in combinations(range(n), size)]
    best = max(value(features, worth, chosen, budget, weight) for chosen in sets)
    assert value(features, worth, found.indices, budget, weight) >= best * 2 / 3 - 1e-6


def test_without_a_weight_of_diversity_it_is_top_quality(corpus, selected):
    features, quality = corpus
    found = selected("gist", features, quality, options={"diversity_weight": 0.0})
    assert set(found.indices) == set(np.argsort(-quality)[:40])


@pytest.mark.parametrize("distance", [0.3, 0.7, 1.2])
def test_documents_are_taken_in_order_unless_one_nearer_is_taken(distance, corpus):
    features, quality = corpus
    rows, order = Rows(torch.from_numpy(features)), torch.from_numpy(np.argsort(-quality))
    taken = apart(rows, order, distance, torch.ones(len(quality)), 1_000)
    expected = []
    for document in order.tolist():
        if all(np.linalg.norm(features[document] - features[other]) >= distance for other in expected):
            expected.append(document)
    assert taken.tolist() == expected
    assert least_distance(rows, taken) >= distance


def test_the_farthest_pair_and_the_least_distance(corpus):
    features, _ = corpus
    distances = np.linalg.norm(features[:, None] - features[None], axis=2)
    pair, widest = farthest_pair(Rows(torch.from_numpy(features)))
    assert widest == pytest.approx(distances.max(), rel=1e-5)
    assert distances[tuple(pair)] == pytest.approx(distances.max(), rel=1e-5)
    np.fill_diagonal(distances, np.inf)
    assert least_distance(Rows(torch.from_numpy(features)), torch.arange(len(features))) == pytest.approx(
        distances.min(), rel=1e-3
    )


def test_two_sweeps_find_a_pair_at_least_half_as_far_as_the_farthest(corpus):
    features, _ = corpus
    distances = np.linalg.norm(features[:, None] - features[None], axis=2)
    pair, far = far_pair(Rows(torch.from_numpy(features)))
    assert far == pytest.approx(distances[tuple(pair)], rel=1e-5)
    assert distances.max() / 2 <= far <= distances.max() * (1 + 1e-6)


def test_large_blocks_are_selected_from_without_comparing_all(corpus, selected, monkeypatch):
    monkeypatch.setattr("fineweb_mask.models.selection.selectors.gist.PAIRED", 10)
    monkeypatch.setattr("fineweb_mask.models.selection.selectors.gist.farthest_pair", None)
    assert len(selected("gist", *corpus).indices) > 1
