"""The documents of the arms: random ones, and random ones of given lengths."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fineweb_mask.models.witness.arms import documents_of_equal_lengths, random_documents

LENGTHS = st.lists(st.integers(1, 5_000), min_size=1, max_size=200).map(np.array)


@given(lengths=LENGTHS, tokens=st.integers(1, 100_000), seed=st.integers(0, 9))
def test_random_documents_have_enough_tokens_and_not_one_more(lengths, tokens, seed):
    drawn = random_documents(lengths, tokens, seed)
    assert len(set(drawn.tolist())) == len(drawn)
    assert lengths[drawn].sum() >= min(tokens, lengths.sum())
    assert lengths[drawn[:-1]].sum() < tokens


@given(lengths=LENGTHS, wanted=LENGTHS, seed=st.integers(0, 9))
def test_documents_of_equal_lengths_are_different_and_as_many_as_there_are(lengths, wanted, seed):
    drawn = documents_of_equal_lengths(lengths, wanted, seed)
    assert len(set(drawn.tolist())) == len(drawn) == min(len(wanted), len(lengths))


def test_documents_of_equal_lengths_have_the_wanted_lengths_where_there_are_enough():
    random = np.random.default_rng(0)
    lengths = np.exp(random.normal(6, 1, 20_000)).astype(int) + 1
    wanted = np.sort(lengths[random.permutation(20_000)[:1_000]] // 2 + 1)
    drawn = np.sort(lengths[documents_of_equal_lengths(lengths, wanted, seed=1)])
    assert abs(np.log2(drawn / wanted)).max() < 0.3
    assert abs(drawn.sum() / wanted.sum() - 1) < 0.02
    few = np.array([10] * 5 + [100] * 3 + [1_000] * 50)  # a length that is used up is filled by the nearest
    drawn = np.sort(few[documents_of_equal_lengths(few, np.array([100] * 6), seed=0)])
    assert drawn.tolist() == [10, 10, 10, 100, 100, 100]
    alike = random.integers(50, 60, 1_000)
    first, again, other = (documents_of_equal_lengths(alike, alike[:100], seed).tolist() for seed in (0, 0, 1))
    assert first == again
    assert len(set(first) & set(other)) < 30
