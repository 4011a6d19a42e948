"""PreSelect's score against its definition."""

from itertools import combinations

import numpy as np
import pytest

from fineweb_mask.models.probe.losses import predictive_strength


def test_it_is_the_share_of_pairs_in_the_order_of_their_ability():
    random = np.random.default_rng(0)
    losses, ability = random.normal(size=(6, 20)).round(1), np.array([0.3, 0.1, 0.5, 0.5, 0.2, 0.9])
    expected = np.zeros(20)
    pairs = [(i, j) for i, j in combinations(range(6), 2) if ability[i] != ability[j]]
    for i, j in pairs:
        low, high = (i, j) if ability[i] < ability[j] else (j, i)
        expected += np.where(losses[high] < losses[low], 1.0, np.where(losses[high] == losses[low], 0.5, 0.0))
    np.testing.assert_allclose(predictive_strength(losses, ability), expected / len(pairs))


def test_losses_that_fall_with_ability_have_strength_one_and_those_that_rise_zero():
    ability = np.arange(5.0)
    losses = np.stack([-ability, ability, np.zeros(5)], axis=1)
    assert predictive_strength(losses, ability).tolist() == [1.0, 0.0, 0.5]


@pytest.mark.parametrize(
    ("losses", "ability", "message"),
    [
        ([[1.0], [2.0]], [0.1], r"must be \(models, documents\) with 1 models, received \(2, 1\)"),
        ([[1.0], [2.0]], [0.1, 0.1], "must differ between at least two models"),
        ([[1.0], [np.nan]], [0.1, 0.2], "must be finite: drop"),
    ],
)
def test_what_says_nothing_is_refused(losses, ability, message):
    with pytest.raises(ValueError, match=message):
        predictive_strength(losses, ability)
