"""PreSelect's score against its definition."""

from itertools import combinations

import numpy as np
import pytest

from fineweb_mask.models.probe.losses import drawn_weights, learned_weights, predictive_strength


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


BEST = {"edu": 0.6, "fluency": 0.3, "length": 0.1}


def distance(weights):
    return np.sqrt(sum((weights[name] - best) ** 2 for name, best in BEST.items()))


@pytest.fixture(scope="module")
def weightings():
    return drawn_weights(list(BEST), 200)


def test_they_are_near_those_of_the_lowest_loss(weightings):
    noise = 0.01 * np.random.default_rng(1).normal(size=200)
    found = learned_weights(weightings, 3 + np.array([distance(one) ** 2 for one in weightings]) + noise)
    assert sum(found.weights.values()) == pytest.approx(1)
    assert distance(found.weights) < 0.12
    assert distance(found.weights) < 0.5 * distance(dict.fromkeys(BEST, 1 / 3))
    assert found.rank_correlation > 0.9
    assert 2.9 < found.predicted < 3.1


def test_losses_by_chance_are_not_predicted(weightings):
    found = learned_weights(weightings, np.random.default_rng(2).normal(size=200), draws=1_000)
    assert abs(found.rank_correlation) < 0.25


def test_it_depends_on_the_seed_alone(weightings):
    losses = [distance(one) for one in weightings]
    assert learned_weights(weightings, losses, draws=500) == learned_weights(weightings, losses, draws=500)


def test_draws_are_uniform_on_the_simplex():
    drawn = np.array([list(one.values()) for one in drawn_weights(["a", "b", "c"], 20_000)])
    np.testing.assert_allclose(drawn.sum(1), 1)
    np.testing.assert_allclose(drawn.mean(0), 1 / 3, atol=0.01)
    np.testing.assert_allclose(drawn.var(0), 2 / 36, atol=0.003)  # of Dirichlet(1, 1, 1): (1/3)(2/3)/4


@pytest.mark.parametrize(
    ("count", "losses", "message"),
    [
        (9, np.ones(9), "at least 10 models, one for each weighting, received 9 losses of 9"),
        (12, np.ones(11), "received 11 losses of 12"),
        (10, [*np.ones(9), np.nan], "losses must be finite"),
    ],
)
def test_what_cannot_be_learned_from_is_refused(count, losses, message):
    with pytest.raises(ValueError, match=message):
        learned_weights(drawn_weights(["a", "b"], count), losses)


def test_more_draws_begin_with_the_same():
    assert drawn_weights(list(BEST), 50)[:20] == drawn_weights(list(BEST), 20)
