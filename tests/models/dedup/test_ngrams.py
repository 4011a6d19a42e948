"""Word n-grams: the same as tuples of words, whatever the case and the punctuation."""

import re

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fineweb_mask.models.dedup.ngrams import MULTIPLIER, ngram_hashes, places, run_hashes

WORDS = st.lists(st.sampled_from(["a", "b", "the", "cat", "über", "12"]), max_size=40)


def plain(words, length=13):
    """The different n-grams, as tuples."""
    length = min(length, len(words))
    return {tuple(words[start : start + length]) for start in range(len(words) - length + 1)} if words else set()


@given(WORDS, WORDS)
def test_shares_are_those_of_tuples_of_words(left, right):
    hashes = [ngram_hashes(" ".join(words)) for words in (left, right)]
    assert [len(one) for one in hashes] == [len(plain(left)), len(plain(right))]
    assert len(np.intersect1d(*hashes)) == len(plain(left) & plain(right))


@given(WORDS)
def test_case_and_punctuation_do_not_matter(words):
    text = " ".join(words)
    changed = re.sub(" ", ", -- ", text.upper()) + "!"
    assert ngram_hashes(text).tolist() == ngram_hashes(changed).tolist()


@given(WORDS, WORDS)
def test_places_find_the_common_ones(left, right):
    hashes, known = ngram_hashes(" ".join(left)), ngram_hashes(" ".join(right))
    assert sorted(known[places(hashes, known)]) == sorted(set(hashes.tolist()) & set(known.tolist()))


@given(st.lists(st.integers(0, 2**64 - 1), max_size=60), st.integers(1, 33))
def test_runs_are_hashed_as_one_value_after_another(values, length):
    expected = []
    for start in range(len(values) - length + 1):
        found = 0
        for value in values[start : start + length]:
            found = (found * int(MULTIPLIER) + value + 1) % 2**64
        expected.append(found ^ (found >> 29))
    assert run_hashes(np.array(values, dtype=np.uint64), length).tolist() == expected
