"""Paired comparisons: intervals that cover, verdicts that are rarely false, p values adjusted for all pairs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fineweb_mask.models.probe.comparison import bits_per_byte, compare, holm


def experiment(random, *, effect, seeds=3, documents=120, of_seeds=0.01, of_documents=0.05):
    """Bits of two arms; `effect` and the standard deviations are in bits per byte of the difference."""
    sizes = random.integers(200, 2000, documents)
    base = random.normal(2, 0.3, documents)
    difference = (
        effect + random.normal(0, of_seeds, (seeds, 1)) + random.normal(0, of_documents, documents)
    )  # a seed's error is common to all documents, a document's to all seeds
    return (base + difference) * sizes, np.broadcast_to(base * sizes, (seeds, documents)), sizes, np.arange(documents)


@pytest.mark.parametrize("seeds", [2, 3, 5])
@pytest.mark.parametrize(("of_seeds", "of_documents"), [(0.02, 0.01), (0.01, 0.1), (0.0, 0.1)])
def test_intervals_cover_the_truth_as_often_as_they_say(seeds, of_seeds, of_documents):
    random = np.random.default_rng(7)
    covered = 0
    for trial in range(200):
        drawn = experiment(random, effect=0.03, seeds=seeds, of_seeds=of_seeds, of_documents=of_documents)
        found = compare(*drawn, resamples=300, seed=trial)
        covered += found.low <= 0.03 <= found.high
    share = 0.91 if seeds == 2 else 0.94  # Satterthwaite's t is a little short with two seeds
    assert covered >= 200 * share - 2.5 * np.sqrt(200 * share * (1 - share))


def test_the_visible_difference_is_seen_in_most_experiments():
    random = np.random.default_rng(1)
    visible = np.median([compare(*experiment(random, effect=0), resamples=200).visible for _ in range(50)])
    seen = [compare(*experiment(random, effect=visible), resamples=200).p < 0.05 for _ in range(100)]
    assert np.mean(seen) > 0.6


def test_swapped_arms_give_the_opposite():
    bits, other, sizes, clusters = experiment(np.random.default_rng(2), effect=0.05)
    found, swapped = compare(bits, other, sizes, clusters), compare(other, bits, sizes, clusters)
    assert found.difference == pytest.approx(-swapped.difference)
    assert (found.low, found.high) == pytest.approx((-swapped.high, -swapped.low))
    assert found.p == pytest.approx(swapped.p)
    assert found == compare(bits, other, sizes, clusters)  # and a second time the same


def test_documents_of_one_host_count_as_fewer():
    bits, other, sizes, _ = experiment(np.random.default_rng(3), effect=0.0, of_seeds=0.001)
    hosts = np.repeat(np.arange(12), 10)
    bits = bits + np.random.default_rng(4).normal(0, 0.1, 12)[hosts] * sizes  # an error that a host's pages share
    apart, together = (compare(bits, other, sizes, clusters) for clusters in (np.arange(120), hosts))
    assert together.high - together.low > 1.5 * (apart.high - apart.low)


def test_many_seeds_and_documents_give_the_standard_error():
    """With documents of one size, the error is that of the mean over seeds and of the mean over documents."""
    random = np.random.default_rng(5)
    bits = 500 * (random.normal(0, 0.02, (40, 1)) + random.normal(0, 0.3, 400))
    found = compare(bits, np.zeros((40, 400)), np.full(400, 500), np.arange(400))
    error = np.sqrt((bits / 500).mean(1).var(ddof=1) / 40 + (bits / 500).mean(0).var(ddof=1) / 400)
    assert (found.high - found.low) / 2 == pytest.approx(1.96 * error, rel=0.08)


@pytest.mark.parametrize(("seeds", "effect", "said"), [(1, 1.0, "no verdict"), (3, -1.0, "better"), (3, 1.0, "worse")])
def test_verdicts(seeds, effect, said):
    found = compare(*experiment(np.random.default_rng(6), effect=effect, seeds=seeds))
    assert found.verdict(adjusted=found.p, seeds=seeds).startswith(said)


def test_what_many_comparisons_may_show_by_chance_is_no_difference():
    found = compare(*experiment(np.random.default_rng(6), effect=1.0))
    assert found.verdict(adjusted=0.06, seeds=3) == "no difference seen"


def test_equal_arms_have_no_difference():
    bits, _, sizes, clusters = experiment(np.random.default_rng(8), effect=0.0)
    found = compare(bits, bits, sizes, clusters)
    assert (found.difference, found.low, found.high, found.p) == (0, 0, 0, 1)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_is_the_closed_testing_procedure(p_values):
    """Against the definition: the largest, over all sets in order of size, of (size of the set) x p."""
    adjusted, order = holm(p_values), np.argsort(p_values, kind="stable")
    for rank, place in enumerate(order):
        steps = [(len(order) - earlier) * p_values[order[earlier]] for earlier in range(rank + 1)]
        assert adjusted[place] == pytest.approx(min(1.0, max(steps)))


def test_bits_per_byte_weighs_documents_by_their_size():
    assert bits_per_byte(np.array([[10.0, 10.0]]), np.array([5, 15])).tolist() == [1.0]
