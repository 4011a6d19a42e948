"""A document's standing among others: against plain sorting, and against what the solver reports."""

import numpy as np
import pytest

from fineweb_mask.models import standing as module
from fineweb_mask.models.selection import objective
from fineweb_mask.models.standing import edge, margin, standing


def drawn(n=200, values=20):
    dice = np.random.default_rng(3)
    return dice.integers(0, values, n) / values, dice.integers(1, 50, n)


def test_ranks_and_shares_are_those_of_a_stable_sort():
    inclusion, tokens = drawn()
    order = np.argsort(-inclusion, kind="stable")
    share = np.cumsum(tokens[order]) / tokens.sum()
    for rank, place in enumerate(order):
        found = standing(inclusion, tokens, int(place))
        assert found.rank == rank + 1
        assert found.of == 200
        assert found.share == pytest.approx(share[rank])
    unseen = np.array([np.nan, -5.0, np.nan])  # by any solver: they come last
    assert [standing(unseen, np.ones(3, dtype=int), place).rank for place in range(3)] == [2, 1, 3]


def test_the_edge_is_between_the_last_selected_and_the_next():
    assert edge(np.array([0.2, 0.8, 0.6, 0.4]), np.array([False, True, True, False])) == pytest.approx(0.5)
    assert edge(np.array([0.3, 0.7]), np.array([True, True])) == pytest.approx(0.3)


def test_a_margin_is_the_distance_of_the_gain_that_the_inclusion_was_made_of():
    assert module.READABLE == objective.READABLE
    distance = np.linspace(-3, 3, 13)  # in deviations, as the solver computes its inclusion
    inclusion = (1 / (1 + np.exp(-distance / objective.READABLE))).astype(np.float32)
    np.testing.assert_allclose([margin(float(one), 0.5) for one in inclusion], distance, atol=2e-2)
    assert margin(1.0, 0.5) == -margin(0.0, 0.5) > 4  # a float32 tells no larger ones apart
    assert margin(0.7, 0.7) == 0
