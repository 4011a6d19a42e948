"""Cliques against the pairs that they sum up to."""

import pytest
import torch

from fineweb_mask.models.selection.graphs.pairs import Pairs
from fineweb_mask.models.selection.metrics import cliques as cliques_module
from fineweb_mask.models.selection.metrics.cliques import cover_with_cliques
from tests.models.selection.enumerable import random_masks


def random_pairs(n, share, seed):
    generator = torch.Generator().manual_seed(seed)
    held = (torch.rand((n, n), generator=generator) < share).triu(1)
    first, second = held.nonzero().unbind(1)
    weights = torch.rand(len(first), generator=generator) * 0.95 + 0.05
    return Pairs(first, second, weights), weights


@pytest.mark.parametrize("limit", [None, "MOST_PAIRS", "MOST_WORK"])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.6, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_cliques_sum_to_the_weights_of_the_pairs(share, seed, limit, monkeypatch):
    if limit is not None:
        monkeypatch.setattr(cliques_module, limit, 20)
    n = 14
    pairs, weights = random_pairs(n, share, seed)
    cliques = cover_with_cliques(n, pairs, weights)
    for mask in random_masks(n, 6, 50, seed):
        sizes = cliques.sums(mask)
        assert float((cliques.weights * sizes * (sizes - 1) / 2).sum()) == pytest.approx(
            float(weights[mask[pairs.first] & mask[pairs.second]].sum()), abs=1e-4
        )


def test_a_group_of_equal_pairs_is_one_clique():
    pairs, _ = random_pairs(9, 1.0, 0)
    cliques = cover_with_cliques(9, pairs, torch.full((len(pairs),), 0.7))
    assert cliques.weights.tolist() == [pytest.approx(0.7)]
    assert cliques.sums(torch.ones(9)).tolist() == [9]


def test_values_of_cliques_are_spread_to_their_members():
    pairs = Pairs(torch.tensor([0, 2]), torch.tensor([1, 4]), torch.ones(2))
    cliques = cover_with_cliques(6, pairs, torch.tensor([1.0, 0.5]))
    assert cliques.spread(torch.tensor([3.0, 5.0], dtype=torch.float64)).tolist() == [3, 3, 5, 0, 5, 0]
