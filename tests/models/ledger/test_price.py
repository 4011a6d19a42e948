"""Estimates from a sample hold the truth of the whole, where this is known."""

import numpy as np
import pytest

from fineweb_mask.models.ledger import price as module
from fineweb_mask.models.ledger.price import (
    Documents,
    Draws,
    Estimate,
    Known,
    Rate,
    Topics,
    cost,
    join,
    mean,
    priced,
    share,
)
from fineweb_mask.models.settings.selection import SelectionSettings

SETTINGS = SelectionSettings(metrics={"facility": 1, "disf": 1}, select_ratio=0.2)
TRIALS = 400


def covered(estimates, truths):
    return np.mean([one.low <= truth <= one.high for one, truth in zip(estimates, truths, strict=True)])


@pytest.mark.parametrize(("rate", "drawn"), [(0.3, 100), (0.01, 400), (0.5, 1_500)])
def test_the_interval_of_a_share_holds_in_19_of_20_samples(rate, drawn):
    dice = np.random.default_rng(0)
    whole = dice.random(2_000) < rate
    samples = [share(dice.choice(whole, drawn, replace=False), drawn / 2_000) for _ in range(TRIALS)]
    assert covered(samples, [whole.mean()] * TRIALS) >= 0.93
    assert np.mean([one.high - one.low for one in samples]) < 5 * np.sqrt(rate * (1 - rate) / drawn) + 0.01


def test_files_that_differ_widen_the_interval_of_a_share():
    dice = np.random.default_rng(0)
    rates = dice.beta(1, 3, size=200)  # of 200 files, 20 of which are drawn, with 20 documents each
    found, naive = [], []
    for _ in range(TRIALS):
        files = np.repeat(dice.choice(200, 20, replace=False), 20)
        hits = dice.random(400) < rates[files]
        found.append(share(hits, 0.0, files))
        naive.append(share(hits, 0.0))
    truth = [rates.mean()] * TRIALS
    assert covered(found, truth) >= 0.9
    assert covered(naive, truth) < 0.8


def test_what_is_drawn_whole_is_known():
    hits = np.arange(10) < 3
    assert share(hits, 1.0) == Estimate(0.3, 0.3, 0.3)
    assert mean(np.array([1, 2, 3]), 1.0) == Estimate(2.0, 2.0, 2.0)
    assert share(hits[:0], 0.5) == Estimate(0.0, 0.0, 0.0)
    assert share(np.zeros(100, dtype=bool), 0.1).high > 0.01


def test_the_interval_of_a_mean_holds_in_19_of_20_samples():
    dice = np.random.default_rng(1)
    whole = dice.lognormal(6, 0.6, size=5_000).astype(int)
    samples = [mean(dice.choice(whole, 300, replace=False), 300 / 5_000) for _ in range(TRIALS)]
    assert covered(samples, [whole.mean()] * TRIALS) >= 0.93


@pytest.mark.parametrize("most", [10_000, 400])
def test_the_interval_of_what_depends_on_all_documents_holds(most, monkeypatch):
    """The value is the difference of two means; the halves vary as the draw itself does around the whole."""
    monkeypatch.setattr(module, "MOST_DOCUMENTS", most)
    dice = np.random.default_rng(2)
    ours, theirs = dice.normal(0, 1, 3_000), dice.normal(0.5, 1, 3_000)
    truth, found = theirs.mean() - ours.mean(), []
    for trial in range(TRIALS // 2):
        one, other = dice.choice(ours, 500, replace=False), dice.choice(theirs, 500, replace=False)
        draws = Draws.of(500, np.arange(500), 500, seed=trial)
        values = [[other[b].mean() - one[a].mean() for a, b in part] for part in (draws.wholes, draws.halves)]
        found.append(draws.estimate(*values, fraction=1 / 6))
    assert covered(found, [truth] * len(found)) >= 0.93
    assert np.mean([one.high - one.low for one in found]) < 0.5


def test_a_change_with_the_number_of_documents_is_carried_on():
    draws = Draws.of(100, np.arange(100), 100)
    steady = draws.estimate([1.0], [0.99, 1.01] * 4, fraction=0.25)
    rising = draws.estimate([1.0], [0.89, 0.91] * 4, fraction=0.25)
    assert steady.high - steady.value < 0.05
    assert rising.high - rising.value > 0.15
    drifting = draws.estimate([1.0], [0.99, 1.01] * 4, fraction=0.25, drift=0.1)
    assert drifting.high - steady.high == pytest.approx(0.2)  # two doublings


def test_what_is_too_much_is_drawn_several_times_in_the_same_proportion(monkeypatch):
    monkeypatch.setattr(module, "MOST_DOCUMENTS", 300)
    draws = Draws.of(2_000, np.arange(200), 800)
    assert draws.share == pytest.approx(0.3)
    assert {(len(own), len(theirs)) for own, theirs in draws.wholes} == {(240, 60)}
    assert {(len(own), len(theirs)) for own, theirs in draws.halves} == {(120, 30)}
    assert len({own.tobytes() for own, _ in draws.wholes}) == module.WHOLES


def test_files_are_halved_as_a_whole():
    draws = Draws.of(100, np.repeat(np.arange(10), 20), 100)
    for _, theirs in draws.halves:
        assert len(np.unique(theirs // 20)) == 5


def documents(n, seed=0, centre=0, dimensions=8):
    dice = np.random.default_rng(seed)
    vectors = dice.normal(size=(n, dimensions)).astype(np.float32)
    vectors[:, centre] += 3
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return Documents(vectors, dice.random(n, np.float32), dice.integers(50, 500, n))


def test_joining_selects_the_share_of_both_and_gains_on_a_selection_of_the_same_size():
    found = join(documents(300), documents(200, seed=1, centre=1), SETTINGS)
    assert found.alone.sum() == found.same_size.sum() == 60
    assert found.kept.sum() == 100
    assert found.kept[300:].any()
    assert found.gain > 0
    by_tokens = join(
        documents(300), documents(200, seed=1), SETTINGS.model_copy(update={"budget_by": "tokens", "budget": 5_000})
    )
    assert documents(300).tokens[by_tokens.alone].sum() <= 5_000
    assert (by_tokens.kept != by_tokens.same_size).sum() <= 20  # nearly the same budget


def test_bad_documents_add_less_than_good_ones():
    ours, theirs = documents(300), documents(300, seed=1)
    settings = SelectionSettings(metrics="pairwise", lamb=0.9, select_ratio=0.2)
    good, bad = (
        join(ours, theirs._replace(quality=theirs.quality + shift), settings)
        for shift in (np.float32(1), np.float32(-1))
    )
    assert good.kept[300:].mean() > 0.35
    assert bad.kept[300:].mean() < 0.02
    assert good.gain > bad.gain > -1e-3


def test_rows_that_cannot_be_selected_count_among_all():
    ours, theirs = documents(400), documents(100, seed=1)
    places = np.full(200, -1)
    places[::2] = np.arange(100)
    measured = []

    def measure(joined, own, chosen):
        assert len(joined.kept) == len(own) + len(chosen)
        measured.append(len(chosen))
        return [(1.0, 0.1)]

    draws = Draws.of(400, np.arange(200), 400)
    found = priced(ours, theirs, places, draws, SETTINGS, fraction=0.2, measure=measure)
    assert measured[0] == 100
    assert len(measured) == 1 + module.HALVES
    assert found.kept.low <= 0.1 <= found.kept.high
    [extra] = found.measured
    assert extra.value == 1
    assert 1.2 < extra.high < 1.3  # its own error alone: the draws all say the same


def test_what_is_unlike_ours_is_new_and_its_cluster_too():
    ours = documents(4_000).vectors
    known = Known.of(ours)
    assert known.are_new(documents(4_000, seed=5).vectors).mean() == pytest.approx(0.01, abs=0.007)
    far = documents(400, seed=6, centre=3).vectors
    assert known.are_new(far).mean() > 0.5
    both = np.concatenate([far, documents(800, seed=7).vectors])
    topics = Topics.of(both)
    count = topics.new_ones(both, known.are_new(both), fraction=0.1)
    assert 0 < count.low <= count.value <= count.high < len(topics.centres)


def test_a_cost_is_as_sure_as_the_rates_and_the_tokens_are():
    tokens = Estimate(1e6, 0.9e6, 1.2e6)
    same = cost([Rate(1000, 2.0)] * 4, tokens)
    assert (same.value, same.low, same.high) == pytest.approx((2000, 1800, 2400))
    apart = cost([Rate(1000, seconds) for seconds in (1.0, 2.0, 3.0)], tokens)
    assert apart.value == pytest.approx(2000)
    assert apart.low < 1000
    assert cost([Rate(1000, 0.0)], tokens) is None
