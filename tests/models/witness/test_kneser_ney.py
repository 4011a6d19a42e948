"""The model of n-grams: equal to a plain reference, normalised, the same for any order of documents."""

from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fineweb_mask.models.witness.kneser_ney import KneserNey

DOCUMENTS = st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=12), min_size=1, max_size=8)


def packed(documents):
    return np.concatenate(documents).astype(np.uint16), np.cumsum([len(one) for one in documents])


class Reference:
    """Interpolated Kneser-Ney as the papers write it: dictionaries of tuples, one probability at a time."""

    def __init__(self, documents, vocabulary, order):
        self.vocabulary, self.order = vocabulary, order
        self.counts = [Counter() for _ in range(order + 1)]
        for document in documents:
            for end in range(order, len(document) + 1):
                self.counts[order][tuple(document[end - order : end])] += 1
        for n in range(1, order):
            before = defaultdict(set)
            for document in documents:
                for end in range(n, len(document) + 1):
                    gram = tuple(document[end - n : end])
                    if end == n:
                        self.counts[n][gram] += 1
                    else:
                        before[gram].add(document[end - n - 1])
            for gram, tokens in before.items():
                self.counts[n][gram] += len(tokens)

    def probability(self, context, token):
        if len(context) + 1 > self.order:
            context = context[-(self.order - 1) :] if self.order > 1 else ()
        p = 1 / self.vocabulary
        for n in range(1, len(context) + 2):
            counts = self.counts[n]
            once, twice = (sum(count == k for count in counts.values()) for k in (1, 2))
            discount = once / (once + 2 * twice) if once else 0.5
            shorter = tuple(context[len(context) - n + 1 :])
            after = [count for gram, count in counts.items() if gram[:-1] == shorter]
            if not after:
                break
            own = max(counts.get((*shorter, token), 0) - discount, 0)
            p = (own + discount * len(after) * p) / sum(after)
        return p


@given(train=DOCUMENTS, test=DOCUMENTS, order=st.integers(1, 5))
def test_equal_to_the_reference(train, test, order):
    model, reference = KneserNey(*packed(train), vocabulary=5, order=order), Reference(train, 5, order)
    expected = [reference.probability(tuple(one[:at]), one[at]) for one in test for at in range(len(one))]
    found = model.log2_probabilities(*packed(test))
    np.testing.assert_allclose(found, np.log2(expected), rtol=1e-12, atol=1e-12)
    backwards = KneserNey(*packed(train[::-1]), vocabulary=5, order=order)  # no order of the documents matters
    assert backwards.log2_probabilities(*packed(test)).tobytes() == found.tobytes()


def test_probabilities_of_a_large_vocabulary_add_up_to_one():
    ids, vocabulary = np.random.default_rng(0).zipf(1.3, 20_000) % 3_000, 3_000
    model = KneserNey(ids, np.arange(100, 20_001, 100), vocabulary=vocabulary)
    found = model.log2_probabilities(*packed([[*ids[37:41], token] for token in range(vocabulary)]))
    assert (2.0 ** found[4::5]).sum() == pytest.approx(1, abs=1e-9)


NOTHING = (np.empty(0, dtype=np.uint16), np.empty(0, dtype=np.int64))


@pytest.mark.parametrize("read", [packed([[0, 1]]), NOTHING], ids=["both seen once: their mass is discounted", "none"])
def test_a_text_that_says_nothing_leaves_every_token_alike(read):
    model = KneserNey(*read, vocabulary=8, order=2)
    assert model.log2_probabilities(*packed([[6], [0]])).tolist() == [-3, -3]
