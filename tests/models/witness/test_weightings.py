"""Weightings that are drawn, what they select, and whether the best are found by losses of which the best is known."""

import numpy as np
import pytest

from fineweb_mask.models.witness.weightings import GroupShares, ScoreWeights, learned_weights

BEST = np.array([0.6, 0.3, 0.1])
LENGTHS = np.random.default_rng(3).integers(5, 60, 4_000)


def distance(weights):
    return np.sqrt(((weights - BEST) ** 2).sum(-1))


@pytest.fixture(scope="module")
def scores():
    return ScoreWeights(np.random.default_rng(0).normal([0, 5, 9], [1, 10, 0.1], (4_000, 3)), LENGTHS, 10_000)


@pytest.fixture(scope="module")
def shares():
    groups = np.random.default_rng(1).choice(4, 4_000, p=[0.7, 0.2, 0.09, 0.01])
    return groups, GroupShares(groups, LENGTHS, 10_000)


@pytest.fixture(scope="module")
def weightings(scores):
    return scores.drawn(200, 0)


def test_they_are_near_those_of_the_lowest_loss(scores, weightings):
    noise = 0.01 * np.random.default_rng(1).normal(size=200)
    found = learned_weights(weightings, 3 + distance(weightings) ** 2 + noise, scores.drawn(200_000, 1))
    assert found.weights.sum() == pytest.approx(1)
    assert distance(found.weights) < 0.12
    assert distance(found.weights) < 0.5 * distance(scores.own)
    assert found.rank_correlation > 0.9
    assert 2.9 < found.predicted < 3.1


def test_small_differences_of_losses_are_learned_as_well_as_large_ones(scores, weightings):
    """Losses differ by a few percent: trees that stop at an improvement of so many units would learn nothing."""
    large, tried = distance(weightings) ** 2, scores.drawn(1_000, 1)
    found, other = (learned_weights(weightings, losses, tried) for losses in (large, 1 + 0.01 * large))
    np.testing.assert_allclose(other.weights, found.weights, atol=1e-6)
    assert other.rank_correlation == pytest.approx(found.rank_correlation, abs=1e-3)
    assert other.predicted == pytest.approx(1 + 0.01 * found.predicted)


def test_losses_by_chance_are_not_predicted(scores, weightings):
    found = learned_weights(weightings, np.random.default_rng(2).normal(size=200), scores.drawn(1_000, 1))
    assert abs(found.rank_correlation) < 0.25
    assert learned_weights(weightings, np.ones(200), scores.drawn(1_000, 1)).rank_correlation == 0


def test_it_depends_on_the_seed_alone(scores, weightings):
    first, second = (learned_weights(weightings, distance(weightings), scores.drawn(500, 1)) for _ in range(2))
    np.testing.assert_array_equal(first.weights, second.weights)
    assert first[1:] == second[1:]


@pytest.mark.parametrize("losses", [np.ones(199), [*np.ones(199), np.nan]])
def test_what_cannot_be_learned_from_is_refused(scores, weightings, losses):
    with pytest.raises(ValueError, match=r"inconsistent numbers of samples|contains NaN"):
        learned_weights(weightings, losses, scores.drawn(10, 1))


def test_draws_are_uniform_on_the_simplex(scores):
    drawn = scores.drawn(20_000, 0)
    np.testing.assert_allclose(drawn.sum(1), 1)
    np.testing.assert_allclose(drawn.mean(0), 1 / 3, atol=0.01)
    np.testing.assert_allclose(drawn.var(0), 2 / 36, atol=0.003)  # of Dirichlet(1, 1, 1): (1/3)(2/3)/4
    np.testing.assert_array_equal(scores.drawn(50, 0)[:20], scores.drawn(20, 0))


def test_the_documents_of_the_highest_weighted_scores_are_selected():
    """On the scale of deviations: a score of large numbers counts no more than one of small ones."""
    values = np.random.default_rng(0).normal([0, 5, 9], [1, 10, 0.1], (4_000, 3))
    weights, scores = np.array([0.2, 0.3, 0.5]), ScoreWeights(values, LENGTHS, 10_000)
    merged = sum(
        weights[place] * (values[:, place] - values[:, place].mean()) / values[:, place].std() for place in range(3)
    )
    chosen = scores.select(weights, 0)
    assert set(chosen) == set(np.argsort(-merged)[: len(chosen)])
    assert 10_000 <= LENGTHS[chosen].sum() < 10_000 + LENGTHS.max()


def test_mixtures_are_drawn_around_the_corpus_and_give_no_group_more_than_it_has(shares):
    groups, of = shares
    held = np.bincount(groups, LENGTHS)
    np.testing.assert_allclose(of.own, held / held.sum())
    drawn = of.drawn(5_000, 0)
    np.testing.assert_allclose(drawn.sum(1), 1)
    assert (drawn >= 0).all()
    assert (drawn <= held / 10_000 + 1e-12).all()
    free = [0, 1]  # the groups that have enough for any mixture are drawn by the roots of their shares
    root = np.sqrt(of.own[free])
    np.testing.assert_allclose(drawn[:, free].mean(0) / drawn[:, free].mean(0).sum(), root / root.sum(), atol=0.03)
    assert drawn[:, 0].min() < 0.1
    assert drawn[:, 0].max() > 0.9


def test_a_mixture_s_documents_have_its_shares_and_are_drawn_again_by_another_seed(shares):
    groups, of = shares
    wanted = of.drawn(5, 7)[2]
    chosen, other = of.select(wanted, 0), of.select(wanted, 1)
    assert len(set(chosen)) == len(chosen)
    spent = np.bincount(groups[chosen], LENGTHS[chosen], 4)
    assert (abs(spent - wanted * 10_000) <= LENGTHS.max() / 2).all()
    assert set(chosen) != set(other)
    np.testing.assert_array_equal(chosen, of.select(wanted, 0))
