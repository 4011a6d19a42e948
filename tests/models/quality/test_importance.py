"""Hashed n-gram importance weights against the published code's definition."""

import numpy as np
import pytest

from fineweb_mask.models.quality.importance import BUCKETS, NgramBuckets, bucket_of, log_ratios


def test_a_weight_is_the_sum_of_log_ratios():
    target, corpus = ["a b", "a c"], ["a b", "d e f"]
    buckets = NgramBuckets()
    weight = buckets.log_weights(["a b d"], log_ratios(buckets.counts(target), buckets.counts(corpus)))[0]
    expected = 0.0
    for _ngram, in_target, in_corpus in [("a", 2, 1), ("b", 1, 1), ("d", 0, 1), ("a b", 1, 1), ("b d", 0, 0)]:
        expected += np.log(in_target / 6 + 1e-8) - np.log(in_corpus / 8 + 1e-8)
    assert len({bucket_of(ngram) for ngram in ("a", "b", "c", "d", "e", "f", "a b", "a c", "d e", "e f", "b d")}) == 11
    assert weight == pytest.approx(expected, rel=1e-5)


def test_short_documents_have_minus_infinity():
    weights = NgramBuckets().log_weights(["two words", "now three words"], np.zeros(BUCKETS), 3)
    assert weights.tolist() == [-np.inf, 0.0]


def test_buckets_are_those_of_the_published_code():
    assert (bucket_of("alice"), bucket_of("alice went")) == (6720, 114)
    found, tokens = NgramBuckets().of("Alice went to the store")
    assert (len(found), tokens) == (9, 5)
    assert found[[0, 5]].tolist() == [6720, 114]
