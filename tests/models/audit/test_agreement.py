import numpy as np
import pytest

from fineweb_mask.models.audit.agreement import best, between_share, group_auc, rank_agreement, wilson

DICE = np.random.default_rng(5)
GROUPS = np.repeat(np.arange(20), 100)


def test_random_groups_say_nothing_and_shifted_ones_what_they_are_shifted_by():
    values = DICE.normal(size=2000)
    assert between_share(values, GROUPS) < 0.02
    assert group_auc(values, GROUPS) == pytest.approx(0.5, abs=0.08)
    shifted = values + 3 * GROUPS
    between = (3 * np.arange(20)).var()
    assert between_share(shifted, GROUPS) == pytest.approx(between / (between + 1), abs=0.01)
    assert group_auc(shifted, GROUPS) > 0.95


def test_many_small_random_groups_have_no_share_of_the_variance():
    """Without a correction, half of the variance would be between groups of two."""
    values = DICE.normal(size=4000)
    assert between_share(values, np.arange(4000) // 2) < 0.08


def test_constant_scores_are_no_error():
    assert between_share(np.ones(50), np.arange(50) % 5) == 0
    assert group_auc(np.ones(50), np.arange(50) % 5) is None
    assert rank_agreement(np.ones((50, 2))) is None
    assert rank_agreement(np.ones((50, 1))) is None
    assert not best(np.ones(50)).any()


def test_the_best_tenth_and_the_agreement_of_ranks():
    values = DICE.permutation(1000)
    assert best(values).sum() == 100
    assert values[best(values)].min() == 900
    assert rank_agreement(np.stack([values, values.astype(float) ** 3], axis=1)) == 1
    assert rank_agreement(np.stack([values, -values], axis=1)) == -1


@pytest.mark.parametrize(
    ("hits", "n", "low", "high"), [(0, 10, 0.0, 0.278), (10, 10, 0.722, 1.0), (5, 10, 0.237, 0.763)]
)
def test_intervals_are_those_of_the_literature(hits, n, low, high):
    """Values of Wilson's interval for ten cases (Agresti and Coull 1998)."""
    found = wilson(hits, n)
    assert found.low == pytest.approx(low, abs=0.001)
    assert found.high == pytest.approx(high, abs=0.001)
    assert wilson(0, 0) is None
