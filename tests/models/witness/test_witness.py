"""The whole witness on texts whose use is known; verdicts are rarely false among equal arms, and intervals cover."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fineweb_mask.models.errors import DataError
from fineweb_mask.models.runtime.stopping import StoppedError, clear_stop_request, request_stop
from fineweb_mask.models.witness import witness as module
from fineweb_mask.models.witness.tokens import PackedTokens
from fineweb_mask.models.witness.witness import HeldOut, equal_lengths_first, judge, standard_error, witness

WORDS = 600
PHRASES = 400


def phrases_of(topic):
    random = np.random.default_rng(topic)
    return random.integers(1 + 200 * topic, 1 + 200 * (topic + 1), (PHRASES, 5))


def document(topic, random, length):
    """Phrases of the topic one after the other; 0 ends it."""
    return np.append(phrases_of(topic)[random.integers(0, PHRASES, length)].ravel(), 0).astype(np.uint16)


def packed(documents):
    return PackedTokens(np.concatenate(documents), np.cumsum([len(one) for one in documents]))


@pytest.fixture(scope="module")
def corpus():
    """600 documents of three topics."""
    random = np.random.default_rng(0)
    topics = random.integers(0, 3, 600)
    return packed([document(topic, random, int(random.integers(10, 60))) for topic in topics]), topics


def held_out(topics, seed=1, count=60):
    random = np.random.default_rng(seed)
    texts = packed([document(topics[place % len(topics)], random, 30)[:-1] for place in range(count)])
    return HeldOut(texts, 4 * texts.lengths, np.arange(count))


@pytest.fixture(scope="module")
def found(corpus):
    pool, topics = corpus
    random = np.random.default_rng(2)
    selections = {
        "random": random.permutation(600)[:200],
        "of the topic": np.flatnonzero(topics == 1),
        "other topics": np.flatnonzero(topics != 1),
        "short": np.argsort(pool.lengths)[:300],
    }
    sets = {"pool": held_out([0, 1, 2]), "topic": held_out([1])}
    return witness(pool, selections, sets, vocabulary=WORDS + 1, quality=-topics.astype(float))


def test_what_is_like_the_held_out_documents_teaches_more(found):
    topic, every = (found["sets"][name]["against"] for name in ("topic", "pool"))
    assert topic["of the topic"]["random"]["verdict"] == "better"
    assert topic["other topics"]["random"]["verdict"] == "worse"
    assert every["of the topic"]["random"]["verdict"] == "worse"
    assert topic["of the topic"].keys() > {"other topics", "short", "top_quality"}  # the first, beside all others


def test_all_arms_have_the_same_tokens_top_quality_is_added_and_short_documents_have_a_control(corpus, found):
    pool, topics = corpus
    documents, control = found["documents"], found["lengths"]["short"]
    assert found["tokens"] <= int(pool.lengths[topics == 1].sum())
    assert documents["top_quality"] < 300
    assert set(found["sets"]["pool"]["against"]) == {"of the topic", "other topics", "short", "top_quality"}
    assert documents[control] == pytest.approx(documents["short"], rel=0.02)
    assert documents["short"] > 1.2 * documents["random"]
    assert set(found["sets"]["pool"]["against"]["short"]) == {"random", control}


def judged(pool, selections, **options):
    return witness(pool, selections, {"set": held_out([1])}, vocabulary=WORDS + 1, **options)


def test_equal_seeds_give_equal_losses_of_at_most_so_many_tokens(corpus):
    pool, topics = corpus
    first, again = (judged(pool, {"one": np.flatnonzero(topics == 0)}, most_tokens=12_000) for _ in range(2))
    assert first == again
    assert first["tokens"] == 12_000 > module.FEWEST_TOKENS
    assert first["documents"]["random"] < 150


@pytest.mark.parametrize(("documents", "says"), [(1, r"arm has [\d,]+ tokens"), (590, "select a smaller share")])
def test_a_selection_of_too_few_tokens_or_nearly_all_of_the_pool_is_refused(corpus, documents, says):
    with pytest.raises(DataError, match=says):
        judged(corpus[0], {"arm": np.arange(documents)})


def test_a_stop_begins_no_further_model(corpus, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    started = []

    def train(*_, **__):
        started.append(0)
        request_stop()
        raise StoppedError("stopped")

    monkeypatch.setattr(module, "KneserNey", train)
    try:
        with pytest.raises(StoppedError):
            judged(corpus[0], {"arm": np.arange(200)})
    finally:
        clear_stop_request()
    assert len(started) < 5


LENGTHS = st.lists(st.integers(1, 5_000), min_size=1, max_size=200).map(np.array)


@given(lengths=LENGTHS, wanted=st.integers(0, 200), seed=st.integers(0, 9))
def test_documents_of_the_wanted_lengths_come_first_and_then_all_others(lengths, wanted, seed):
    chosen = lengths[np.random.default_rng(seed).permutation(len(lengths))[:wanted]]
    drawn = equal_lengths_first(lengths, chosen, seed)
    assert sorted(drawn.tolist()) == list(range(len(lengths)))
    assert drawn.tolist() == equal_lengths_first(lengths, chosen, seed).tolist()
    of_first = np.sort(lengths[drawn[: len(chosen)]])
    assert np.abs(np.log2(of_first / np.sort(chosen))).max(initial=0) < 0.25


DRAWS, LENGTH_DRAWS = 8, 3
DAMAGE = 0.04
"""The effect of shuffling a tenth of the tokens, as it was measured on 480 pages of the web."""
NONE = PackedTokens(np.empty(0, np.uint16), np.empty(0, np.int64))


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
    lengths = {f"arm {place}": f"lengths {place}" for place in range(len(effects))}
    bits |= {name: arm(0, LENGTH_DRAWS) for name in lengths.values()}
    return bits, HeldOut(NONE, sizes, clusters), lengths


@pytest.mark.parametrize(("of_draws", "of_documents"), [(0.001, 0.15), (0.01, 0.02)])
def test_ten_equal_arms_are_told_apart_in_at_most_five_percent(of_draws, of_documents):
    random, false, trials = np.random.default_rng(5), 0, 60
    for _ in range(trials):
        against = judge(*experiment(random, [0] * 10, of_draws=of_draws, of_documents=of_documents))["against"]
        false += any(one["random"]["verdict"] != "no difference seen" for one in against.values())
    assert false <= trials * 0.05 + 2 * np.sqrt(trials * 0.05 * 0.95)


def test_a_tenth_of_damage_is_found():
    random, found = np.random.default_rng(6), 0
    for _ in range(40):
        against = judge(*experiment(random, [DAMAGE] + [0] * 9))["against"]
        found += against["arm 0"]["random"]["verdict"] == "worse"
    assert found >= 36


@pytest.mark.parametrize(("of_draws", "of_documents"), [(0.02, 0.01), (0.01, 0.07), (0.0, 0.1)])
def test_an_interval_covers_the_truth_at_least_as_often_as_it_says(of_draws, of_documents):
    random, covered = np.random.default_rng(7), 0
    for _ in range(200):
        bits, texts, _ = experiment(random, [0.03], of_draws=of_draws, of_documents=of_documents, documents=150)
        found = judge({name: bits[name] for name in ("random", "arm 0")}, texts, {})
        one, base = found["against"]["arm 0"]["random"], np.mean(found["losses"]["random"])
        covered += one["low"] <= -0.03 / base <= one["high"]
    assert covered >= 200 * 0.93 - 2.5 * np.sqrt(200 * 0.93 * 0.07)


def test_gains_are_shares_of_random_documents_loss_and_the_first_arm_is_compared_with_all_others():
    found = judge(*experiment(np.random.default_rng(7), [-0.1, 0.0]))
    losses, [first, second] = found["losses"], found["against"].values()
    assert (set(first), set(second)) == ({"random", "lengths 0", "arm 1"}, {"random", "lengths 1"})
    assert first["arm 1"]["verdict"] == "better"
    base = np.mean(losses["random"])
    assert first["arm 1"]["gain"] == pytest.approx((losses["arm 1"][0] - losses["arm 0"][0]) / base)
    assert first["lengths 0"]["gain"] == pytest.approx((np.mean(losses["lengths 0"]) - losses["arm 0"][0]) / base)


def test_what_is_empty_or_unpredictable_does_not_count():
    bits, texts, lengths = experiment(np.random.default_rng(0), [0])
    noise = bits["arm 0"].copy()
    for of_arm in bits.values():
        of_arm[:, 7] = 7.9 * texts.sizes[7]
    bits["arm 0"][:, 7] += 1e6
    found = judge(bits, texts, lengths)
    assert (found["left_out"], found["documents"]) == (1, 479)
    expected = np.delete(noise, 7, axis=1).sum() / np.delete(texts.sizes, 7).sum()
    assert found["losses"]["arm 0"] == [pytest.approx(expected)]
    sizes = texts.sizes.copy()
    sizes[5] = 0
    found = judge(bits, texts._replace(sizes=sizes), lengths)
    assert (found["left_out"], found["documents"]) == (2, 478)
    assert np.isfinite(found["against"]["arm 0"]["random"]["high"])
    with pytest.raises(DataError, match="of the 480 held-out documents, at least one must have text"):
        judge(bits, texts._replace(sizes=sizes * 0), lengths)


def test_the_standard_error_is_that_of_a_bootstrap_of_clusters():
    random = np.random.default_rng(3)
    sizes, clusters = random.integers(200, 2_000, 600), np.arange(600) // 4
    difference = sizes * (0.02 + random.normal(0, 0.05, 150)[clusters] + random.normal(0, 0.1, 600))
    drawn = []
    for _ in range(800):
        rows = (4 * random.integers(0, 150, 150)[:, None] + np.arange(4)).ravel()
        drawn.append(difference[rows].sum() / sizes[rows].sum())
    assert standard_error(difference, sizes, clusters) == pytest.approx(np.std(drawn), rel=0.1)
