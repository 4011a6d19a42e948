"""The whole witness on texts whose use is known: what teaches more is found, what does not is not."""

import numpy as np
import pytest

from fineweb_mask.models.errors import DataError
from fineweb_mask.models.runtime.stopping import StoppedError, clear_stop_request, request_stop
from fineweb_mask.models.witness import witness as module
from fineweb_mask.models.witness.effects import HeldOut
from fineweb_mask.models.witness.tokens import PackedTokens
from fineweb_mask.models.witness.witness import HeldOutTexts, in_threads, witness

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
    return HeldOutTexts(texts, HeldOut(4 * texts.lengths, np.arange(count)))


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
    topic = found.sets["topic"]
    assert topic.against_random["of the topic"].verdict == "better"
    assert topic.against_random["other topics"].verdict == "worse"
    assert found.sets["pool"].against_random["of the topic"].verdict == "worse"


def test_all_arms_have_the_same_tokens_top_quality_is_added_and_short_documents_have_a_control(corpus, found):
    pool, topics = corpus
    assert found.tokens <= int(pool.lengths[topics == 1].sum())
    assert found.documents["top_quality"] < 300
    assert set(found.sets["pool"].against_random) == {"of the topic", "other topics", "short", "top_quality"}
    control = found.lengths["short"]
    assert found.documents[control] == pytest.approx(found.documents["short"], rel=0.02)
    assert found.documents["short"] > 1.2 * found.documents["random"]
    assert "short" in found.sets["pool"].against_lengths


def judged(pool, selections, topics=(0,), **options):
    """Judge selections on one held-out set, of these topics."""
    return witness(pool, selections, {"set": held_out(topics)}, vocabulary=WORDS + 1, **options)


def test_equal_seeds_give_equal_losses_of_at_most_so_many_tokens(corpus):
    pool, topics = corpus
    random = np.random.default_rng(5)
    theirs = packed([document(1, random, 30) for _ in range(150)])  # from elsewhere
    arms = {"one": np.flatnonzero(topics == 0), "theirs": theirs}
    first, again = (judged(pool, arms, [1], most_tokens=12_000) for _ in range(2))
    assert first == again
    assert first.tokens == 12_000 > module.FEWEST_TOKENS
    assert first.documents["random"] < 150
    assert [first.sets["set"].against_random[name].verdict for name in arms] == ["worse", "better"]


@pytest.mark.parametrize(("documents", "says"), [(1, r"arm has [\d,]+ tokens"), (590, "select a smaller share")])
def test_a_selection_of_too_few_tokens_or_nearly_all_of_the_pool_is_refused(corpus, documents, says):
    pool, _ = corpus
    with pytest.raises(DataError, match=says):
        judged(pool, {"arm": np.arange(documents)})


def test_results_of_several_are_in_their_order_and_a_stop_begins_no_further_work(monkeypatch):
    assert in_threads("numbers", lambda number: number**2, range(5)) == [0, 1, 4, 9, 16]
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    begun = []

    def work(number):
        begun.append(number)
        request_stop()

    try:
        with pytest.raises(StoppedError):
            in_threads("steps", work, range(100))
    finally:
        clear_stop_request()
    assert len(begun) < 5
