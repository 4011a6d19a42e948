"""Verdicts on arms: rarely false among equal arms, found where a dose of damage was planted, in the words of doses."""

import numpy as np
import pytest

from fineweb_mask.models.errors import DataError
from fineweb_mask.models.witness.effects import judge
from fineweb_mask.models.witness.paired import HeldOut

DRAWS, LENGTH_DRAWS, DOSED = 8, 3, 2
DOSES = {"shuffled": {0.1: 0.04, 0.2: 0.085, 0.4: 0.19}, "more tokens": {0.1: -0.015, 0.2: -0.03, 0.4: -0.052}}
"""Effects as they were measured on 480 pages of the web, of which the deviations below are typical, too."""


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
    doses = {kind: {share: f"{kind} {share}" for share in shares} for kind, shares in DOSES.items()}
    for kind, shares in DOSES.items():
        for share, effect in shares.items():
            bits[f"{kind} {share}"] = bits["random"][:DOSED] + effect * sizes
    return bits, HeldOut(sizes, clusters), {"random": "random", "lengths": lengths, "doses": doses}


@pytest.mark.parametrize(("of_draws", "of_documents"), [(0.001, 0.15), (0.01, 0.02)])
def test_ten_equal_arms_are_told_apart_in_at_most_five_percent(of_draws, of_documents):
    random, false, trials = np.random.default_rng(5), 0, 60
    for _ in range(trials):
        bits, held_out, how = experiment(random, [0] * 10, of_draws=of_draws, of_documents=of_documents)
        judged = judge(bits, held_out, **how)
        false += min(effect.adjusted for effect in judged.against_random.values()) < 0.05
    assert false <= trials * 0.05 + 2 * np.sqrt(trials * 0.05 * 0.95)


def test_a_dose_of_ten_percent_is_found():
    random, found = np.random.default_rng(6), 0
    for _ in range(40):
        bits, held_out, how = experiment(random, [DOSES["shuffled"][0.1]] + [0] * 9)
        found += judge(bits, held_out, **how).against_random["arm 0"].verdict == "worse"
    assert found >= 38


def test_the_best_arm_is_compared_with_every_other_and_no_control_and_effects_have_doses():
    bits, held_out, how = experiment(np.random.default_rng(7), [-0.1, 0.0])
    judged = judge(bits, held_out, **how, best="arm 0")
    [(name, effect)] = judged.against_best.items()
    assert (name, effect.verdict) == ("arm 1", "worse")
    assert effect.difference == pytest.approx(float(judged.losses["arm 1"][0] - judged.losses["arm 0"][0]))
    doses = {0.085: ("shuffled", 0.2), -0.0225: ("more tokens", 0.15), 0.02: ("shuffled", 0.05)}
    for difference, (kind, share) in doses.items():
        assert judged.as_dose(difference) == (kind, pytest.approx(share))
    assert judged.as_dose(0.5) == ("shuffled", float("inf"))


def test_what_would_have_been_seen_shrinks_with_the_noise():
    seen = []
    for scale in (0.2, 1, 100):
        noise = {"of_draws": 0.005 * scale, "of_documents": 0.08 * min(scale, 1)}
        bits, held_out, how = experiment(np.random.default_rng(0), [0] * 3, **noise)
        seen.append(judge(bits, held_out, **how).sees)
    assert 0 < seen[0] < seen[1] < 0.4
    assert seen[2] is None


def test_what_is_empty_unpredictable_or_alone_in_its_group_does_not_count():
    bits, held_out, how = experiment(np.random.default_rng(0), [0])
    noise = bits["arm 0"].copy()
    for of_arm in bits.values():
        of_arm[:, 7] = 7.9 * held_out.sizes[7]
    bits["arm 0"][:, 7] += 1e6
    judged = judge(bits, held_out, **how)
    assert (judged.left_out, judged.documents) == (1, 479)
    expected = np.delete(noise, 7, axis=1).sum() / np.delete(held_out.sizes, 7).sum()
    assert judged.losses["arm 0"] == [pytest.approx(expected)]
    sizes, groups = held_out.sizes.copy(), held_out.clusters // 80
    sizes[5], groups[9] = 0, 7
    judged = judge(bits, HeldOut(sizes, held_out.clusters, groups), **how)
    assert (judged.left_out, judged.documents) == (3, 477)
    assert np.isfinite([value for effect in judged.against_random.values() for value in effect[:5]]).all()
    for nothing in (HeldOut(sizes * 0, held_out.clusters), HeldOut(sizes, held_out.clusters, np.arange(480))):
        with pytest.raises(DataError, match="none of the 480 held-out documents counts"):
            judge(bits, nothing, **how)


@pytest.mark.parametrize("groups", [None, "two"])
def test_the_standard_error_is_that_of_a_bootstrap_of_clusters_and_each_group_counts_as_much(groups):
    two = HeldOut(np.array([100, 100, 100, 1_000]), np.arange(4), np.array([0, 0, 0, 1]))
    assert two.losses(np.array([[200, 200, 200, 3_000.0]])) == pytest.approx([2.5])
    random = np.random.default_rng(3)
    sizes, clusters = random.integers(200, 2_000, 600), np.arange(600) // 4
    of = None if groups is None else (clusters % 3 == 0).astype(int)
    difference = sizes * (0.02 + random.normal(0, 0.05, 150)[clusters] + random.normal(0, 0.1, 600))
    held_out = HeldOut(sizes, clusters, of)
    drawn = []
    for _ in range(800):
        rows = (4 * random.integers(0, 150, 150)[:, None] + np.arange(4)).ravel()
        drawn.append(HeldOut(sizes[rows], clusters[rows], None if of is None else of[rows]).losses(difference[rows]))
    assert held_out.error(difference) == pytest.approx(np.std(drawn), rel=0.1)
