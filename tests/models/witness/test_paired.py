"""Paired comparisons: intervals that cover, verdicts that are rarely false, p values adjusted for all pairs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fineweb_mask.models.witness.paired import bits_per_byte, compare_all, holm, paired_deviation, seeds_needed


def experiment(random, effects, *, seeds=3, documents=100, of_seeds=0.01, of_documents=0.05):
    """Bits of arms with these effects; the standard deviations are in bits per byte of a training and a document."""
    sizes = random.integers(200, 2000, documents)
    base = random.normal(2, 0.3, documents) + random.normal(0, 0.1, (1, seeds, 1))  # a seed is good or bad for all arms
    own = random.normal(0, of_seeds, (len(effects), seeds, 1)) + random.normal(
        0, of_documents, (len(effects), 1, documents)
    )
    return (base + own + np.array(effects)[:, None, None]) * sizes, sizes, np.arange(documents)


@pytest.mark.parametrize(("arms", "seeds"), [(2, 2), (2, 3), (2, 5), (6, 3)])
@pytest.mark.parametrize(("of_seeds", "of_documents"), [(0.02, 0.01), (0.01, 0.07), (0.0, 0.1)])
def test_intervals_cover_the_truth_at_least_as_often_as_they_say(arms, seeds, of_seeds, of_documents):
    random = np.random.default_rng(7)
    covered = 0
    for _ in range(200):
        drawn = experiment(random, [0.03] + [0] * (arms - 1), seeds=seeds, of_seeds=of_seeds, of_documents=of_documents)
        found = compare_all(*drawn)[0]
        covered += found.low <= 0.03 <= found.high
    assert covered >= 200 * 0.93 - 2.5 * np.sqrt(200 * 0.93 * 0.07)  # 100 documents are 2% short


@pytest.mark.parametrize(("of_seeds", "of_documents"), [(0.03, 0.02), (0.01, 0.1)])
def test_equal_arms_are_rarely_told_apart(of_seeds, of_documents):
    """Holm keeps the chance of any verdict among the 45 pairs of ten equal arms with three seeds at 5%."""
    random = np.random.default_rng(3)
    false = 0
    for _ in range(100):
        drawn = experiment(random, [0] * 10, of_seeds=of_seeds, of_documents=of_documents)
        false += min(holm([one.p for one in compare_all(*drawn)])) < 0.05
    assert false <= 10  # 2.3 standard deviations above 5


def test_the_visible_difference_is_seen_in_most_experiments():
    random = np.random.default_rng(1)
    drawn = [experiment(random, [0] * 4) for _ in range(40)]
    visible = np.median([compare_all(*one)[0].visible for one in drawn])
    seen = [compare_all(*experiment(random, [visible, 0, 0, 0]))[0].p < 0.05 for _ in range(100)]
    assert np.mean(seen) > 0.7


def test_two_arms_on_one_document_are_a_paired_t_test():
    random = np.random.default_rng(2)
    bits = random.normal(800, 5, (2, 4, 1))
    [found] = compare_all(bits, np.array([400]), np.array([0]))
    expected = stats.ttest_rel(bits[0, :, 0] / 400, bits[1, :, 0] / 400)
    interval = expected.confidence_interval()
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.p == pytest.approx(expected.pvalue)


def test_equal_trainings_leave_the_error_of_the_documents():
    random = np.random.default_rng(5)
    losses = random.normal(2, 0.3, (2, 1, 400)).repeat(3, axis=1)
    [found] = compare_all(500 * losses, np.full(400, 500), np.arange(400))
    error = (losses[0, 0] - losses[1, 0]).std() / np.sqrt(400)
    assert (found.high - found.low) / 2 == pytest.approx(1.96 * error, rel=0.05)


def test_swapped_arms_give_the_opposite():
    bits, sizes, clusters = experiment(np.random.default_rng(2), [0.05, 0])
    [found], [swapped] = compare_all(bits, sizes, clusters), compare_all(bits[::-1], sizes, clusters)
    assert found.difference == pytest.approx(-swapped.difference)
    assert (found.low, found.high) == pytest.approx((-swapped.high, -swapped.low))
    assert found.p == pytest.approx(swapped.p)
    assert [found] == compare_all(bits, sizes, clusters)  # and a second time the same


def test_documents_of_one_host_count_as_fewer():
    random = np.random.default_rng(3)
    bits, sizes, _ = experiment(random, [0, 0], of_seeds=0.001, documents=120)
    hosts = np.repeat(np.arange(12), 10)
    bits = bits + random.normal(0, 0.1, (2, 1, 12))[:, :, hosts] * sizes  # an error that a host's pages share
    [apart], [together] = (compare_all(bits, sizes, clusters) for clusters in (np.arange(120), hosts))
    assert together.high - together.low > 1.5 * (apart.high - apart.low)


def test_more_arms_tell_more_of_the_seeds():
    """Three seeds of two arms have 2 degrees of freedom, of ten arms 18: the intervals are half as wide."""
    random = np.random.default_rng(9)
    widths = {2: [], 10: []}
    for arms, found in widths.items():
        for _ in range(30):
            one = compare_all(*experiment(random, [0] * arms, of_seeds=0.05, of_documents=0.01))[0]
            found.append(one.high - one.low)
    assert np.median(widths[10]) < 0.7 * np.median(widths[2])


@pytest.mark.parametrize(("seeds", "effect", "said"), [(1, 1.0, "no verdict"), (3, -1.0, "better"), (3, 1.0, "worse")])
def test_verdicts(seeds, effect, said):
    [found] = compare_all(*experiment(np.random.default_rng(6), [effect, 0], seeds=seeds))
    assert found.verdict(adjusted=found.p, seeds=seeds).startswith(said)


def test_what_many_comparisons_may_show_by_chance_is_no_difference():
    [found] = compare_all(*experiment(np.random.default_rng(6), [1.0, 0]))
    assert found.verdict(adjusted=0.06, seeds=3) == "no difference seen"


def test_equal_arms_have_no_difference():
    bits, sizes, clusters = experiment(np.random.default_rng(8), [0])
    [found] = compare_all(bits.repeat(2, axis=0), sizes, clusters)
    assert (found.difference, found.low, found.high, found.p) == pytest.approx((0, 0, 0, 1))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_takes_the_largest_of_all_steps_before(p_values):
    adjusted, order = holm(p_values), np.argsort(p_values, kind="stable")
    for rank, place in enumerate(order):
        steps = [(len(order) - earlier) * p_values[order[earlier]] for earlier in range(rank + 1)]
        assert adjusted[place] == pytest.approx(min(1.0, max(steps)))


def test_bits_per_byte_weighs_documents_by_their_size():
    assert bits_per_byte(np.array([[10.0, 10.0]]), np.array([5, 15])).tolist() == [1.0]


def test_the_paired_deviation_is_that_of_differences_over_seeds():
    random = np.random.default_rng(4)
    bits, sizes, _ = experiment(random, [0, 0, 0], seeds=200, of_seeds=0.01, of_documents=0)
    assert paired_deviation(bits, sizes) == pytest.approx(0.01 * np.sqrt(2), rel=0.1)
    assert paired_deviation(bits[:, :1], sizes) is None


def test_so_many_seeds_show_an_effect_in_most_experiments():
    random = np.random.default_rng(5)
    needed = seeds_needed(0.01 * np.sqrt(2), 0.012)
    seen = 0
    for _ in range(100):
        bits, sizes, clusters = experiment(random, [0.012, 0], seeds=needed, of_seeds=0.01, of_documents=0)
        [found] = compare_all(bits, sizes, clusters)
        seen += found.p < 0.05
    assert needed == 13
    assert 72 <= seen <= 92
