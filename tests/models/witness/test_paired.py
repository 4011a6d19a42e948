"""Paired comparisons: intervals that cover, verdicts that are rarely false, p values adjusted for all comparisons."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fineweb_mask.models.witness.paired import HeldOut, compared, holm


def experiment(random, effects, *, draws=3, documents=100, of_draws=0.01, of_documents=0.05):
    """Bits of arms with these effects, (arms, draws, n); deviations in bits per byte of a draw and a document."""
    sizes = random.integers(200, 2000, documents)
    own = random.normal(0, of_draws, (len(effects), draws, 1))
    own = own + random.normal(0, of_documents, (len(effects), 1, documents))
    return (random.normal(2, 0.3, documents) + own + np.array(effects)[:, None, None]) * sizes, sizes


def first_two(bits, sizes):
    """Compare two arms; how much draws differ is pooled over all."""
    held_out = HeldOut(sizes, np.arange(len(sizes)))
    losses = held_out.losses(bits)
    freedom = losses.shape[0] * (losses.shape[1] - 1)
    error = np.sqrt(((losses - losses.mean(1, keepdims=True)) ** 2).sum() / max(freedom, 1) * 2 / losses.shape[1])
    of_documents = held_out.error(bits[0].mean(0) - bits[1].mean(0))
    return compared(float(losses[0].mean() - losses[1].mean()), float(error), freedom, of_documents)


@pytest.mark.parametrize(("arms", "draws"), [(2, 2), (6, 3)])
@pytest.mark.parametrize(("of_draws", "of_documents"), [(0.02, 0.01), (0.01, 0.07), (0.0, 0.1)])
def test_intervals_cover_the_truth_at_least_as_often_as_they_say(arms, draws, of_draws, of_documents):
    random = np.random.default_rng(7)
    covered = 0
    for _ in range(200):
        effects = [0.03] + [0] * (arms - 1)
        found = first_two(*experiment(random, effects, draws=draws, of_draws=of_draws, of_documents=of_documents))
        covered += found.low <= 0.03 <= found.high
    assert covered >= 200 * 0.93 - 2.5 * np.sqrt(200 * 0.93 * 0.07)  # 100 documents are 2% short


def test_the_visible_difference_is_seen_in_most_experiments():
    random = np.random.default_rng(1)
    visible = np.median([first_two(*experiment(random, [0] * 4)).visible for _ in range(40)])
    assert np.mean([first_two(*experiment(random, [visible, 0, 0, 0])).p < 0.05 for _ in range(100)]) > 0.7


def test_two_arms_on_one_document_are_a_t_test():
    from scipy import stats

    bits = np.random.default_rng(2).normal(800, 5, (2, 4, 1))
    found = first_two(bits, np.array([400]))
    expected = stats.ttest_ind(bits[0, :, 0] / 400, bits[1, :, 0] / 400)
    interval = expected.confidence_interval()
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.p == pytest.approx(expected.pvalue)


@pytest.mark.parametrize(("effect", "said"), [(-1.0, "better"), (1.0, "worse")])
def test_verdicts(effect, said):
    found = first_two(*experiment(np.random.default_rng(6), [effect, 0]))
    assert found.verdict(found.p) == said
    bits = experiment(np.random.default_rng(6), [effect, 0])
    assert first_two(bits[0][::-1], bits[1]).difference == pytest.approx(-found.difference)
    assert found.verdict(0.06) == "no difference seen"  # what many comparisons may show by chance


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_takes_the_largest_of_all_steps_before(p_values):
    adjusted, order = holm(p_values), np.argsort(p_values, kind="stable")
    for rank, place in enumerate(order):
        steps = [(len(order) - earlier) * p_values[order[earlier]] for earlier in range(rank + 1)]
        assert adjusted[place] == pytest.approx(min(1.0, max(steps)))
