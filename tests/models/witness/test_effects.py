"""Verdicts on arms: rarely false among equal arms, found where an effect was planted; intervals that cover."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fineweb_mask.models.errors import DataError
from fineweb_mask.models.witness.effects import HeldOut, compared, holm, judge

DRAWS, LENGTH_DRAWS = 8, 3
DAMAGE = 0.04
"""The effect of shuffling a tenth of the tokens, as it was measured on 480 pages of the web."""


def experiment(random, effects, *, of_draws=0.005, of_documents=0.08, documents=480):
    """Bits of arms with these effects (bits per byte), and how they are judged; deviations of a draw and a document.

    Documents are in clusters of three, which share a part of their errors.
    """
    sizes, clusters = random.integers(200, 2_000, documents), np.arange(documents) // 3
    base = random.normal(2.2, 0.3, documents)

    def arm(effect, draws=1):
        own = (
            random.normal(0, of_draws, (draws, 1))
            + random.normal(0, of_documents / 2, (draws, documents // 3))[:, clusters]
        )
        return (base + effect + own + random.normal(0, of_documents / 2, (draws, documents))) * sizes

    bits = {"random": arm(0, DRAWS)} | {f"arm {place}": arm(effect) for place, effect in enumerate(effects)}
    lengths = {}
    for place in range(len(effects)):
        lengths[f"arm {place}"] = f"lengths {place}"
        bits[f"lengths {place}"] = arm(0, LENGTH_DRAWS)
    return bits, HeldOut(sizes, clusters), {"random": "random", "lengths": lengths}


@pytest.mark.parametrize(("of_draws", "of_documents"), [(0.001, 0.15), (0.01, 0.02)])
def test_ten_equal_arms_are_told_apart_in_at_most_five_percent(of_draws, of_documents):
    random, false, trials = np.random.default_rng(5), 0, 60
    for _ in range(trials):
        bits, held_out, how = experiment(random, [0] * 10, of_draws=of_draws, of_documents=of_documents)
        judged = judge(bits, held_out, **how)
        false += min(effect.adjusted for effect in judged.against_random.values()) < 0.05
    assert false <= trials * 0.05 + 2 * np.sqrt(trials * 0.05 * 0.95)


def test_a_tenth_of_damage_is_found():
    random, found = np.random.default_rng(6), 0
    for _ in range(40):
        bits, held_out, how = experiment(random, [DAMAGE] + [0] * 9)
        found += judge(bits, held_out, **how).against_random["arm 0"].verdict == "worse"
    assert found >= 38


def test_the_best_arm_is_compared_with_every_other_and_no_control():
    bits, held_out, how = experiment(np.random.default_rng(7), [-0.1, 0.0])
    judged = judge(bits, held_out, **how, best="arm 0")
    [(name, effect)] = judged.against_best.items()
    assert (name, effect.verdict) == ("arm 1", "worse")
    assert effect.difference == pytest.approx(float(judged.losses["arm 1"][0] - judged.losses["arm 0"][0]))


def test_what_is_empty_or_unpredictable_does_not_count():
    bits, held_out, how = experiment(np.random.default_rng(0), [0])
    noise = bits["arm 0"].copy()
    for of_arm in bits.values():
        of_arm[:, 7] = 7.9 * held_out.sizes[7]
    bits["arm 0"][:, 7] += 1e6
    judged = judge(bits, held_out, **how)
    assert (judged.left_out, judged.documents) == (1, 479)
    expected = np.delete(noise, 7, axis=1).sum() / np.delete(held_out.sizes, 7).sum()
    assert judged.losses["arm 0"] == [pytest.approx(expected)]
    sizes = held_out.sizes.copy()
    sizes[5] = 0
    judged = judge(bits, HeldOut(sizes, held_out.clusters), **how)
    assert (judged.left_out, judged.documents) == (2, 478)
    assert np.isfinite([value for effect in judged.against_random.values() for value in effect]).all()
    with pytest.raises(DataError, match="of the 480 held-out documents, at least one must have text"):
        judge(bits, HeldOut(sizes * 0, held_out.clusters), **how)


def test_the_standard_error_is_that_of_a_bootstrap_of_clusters():
    random = np.random.default_rng(3)
    sizes, clusters = random.integers(200, 2_000, 600), np.arange(600) // 4
    difference = sizes * (0.02 + random.normal(0, 0.05, 150)[clusters] + random.normal(0, 0.1, 600))
    drawn = []
    for _ in range(800):
        rows = (4 * random.integers(0, 150, 150)[:, None] + np.arange(4)).ravel()
        drawn.append(HeldOut(sizes[rows], clusters[rows]).losses(difference[rows]))
    assert HeldOut(sizes, clusters).error(difference) == pytest.approx(np.std(drawn), rel=0.1)


def arms_of(random, effects, *, draws=3, documents=100, of_draws=0.01, of_documents=0.05):
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
        found = first_two(*arms_of(random, effects, draws=draws, of_draws=of_draws, of_documents=of_documents))
        covered += found.low <= 0.03 <= found.high
    assert covered >= 200 * 0.93 - 2.5 * np.sqrt(200 * 0.93 * 0.07)  # 100 documents are 2% short


def test_the_visible_difference_is_seen_in_most_experiments():
    random = np.random.default_rng(1)
    visible = np.median([first_two(*arms_of(random, [0] * 4)).visible for _ in range(40)])
    assert np.mean([first_two(*arms_of(random, [visible, 0, 0, 0])).adjusted < 0.05 for _ in range(100)]) > 0.7


def test_two_arms_on_one_document_are_a_t_test():
    from scipy import stats

    bits = np.random.default_rng(2).normal(800, 5, (2, 4, 1))
    found = first_two(bits, np.array([400]))
    expected = stats.ttest_ind(bits[0, :, 0] / 400, bits[1, :, 0] / 400)
    interval = expected.confidence_interval()
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.adjusted == pytest.approx(expected.pvalue)


@pytest.mark.parametrize(("effect", "said"), [(-1.0, "better"), (1.0, "worse")])
def test_verdicts(effect, said):
    found = first_two(*arms_of(np.random.default_rng(6), [effect, 0]))
    assert found.verdict == said
    bits = arms_of(np.random.default_rng(6), [effect, 0])
    assert first_two(bits[0][::-1], bits[1]).difference == pytest.approx(-found.difference)
    assert found._replace(adjusted=0.06).verdict == "no difference seen"  # what many comparisons may show by chance


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_takes_the_largest_of_all_steps_before(p_values):
    adjusted, order = holm(p_values), np.argsort(p_values, kind="stable")
    for rank, place in enumerate(order):
        steps = [(len(order) - earlier) * p_values[order[earlier]] for earlier in range(rank + 1)]
        assert adjusted[place] == pytest.approx(min(1.0, max(steps)))
