"""Runs of values: hashed as one after another, and found among known ones."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fineweb_mask.models.dedup.ngrams import MULTIPLIER, places, run_hashes

HASHES = st.lists(st.integers(0, 40), unique=True)


@given(HASHES, HASHES)
def test_places_find_the_common_ones(left, right):
    hashes, known = (np.sort(np.array(one, dtype=np.uint64)) for one in (left, right))
    assert set(known[places(hashes, known)].tolist()) == set(left) & set(right)


@given(st.lists(st.integers(0, 2**64 - 1), max_size=60), st.integers(1, 33))
def test_runs_are_hashed_as_one_value_after_another(values, length):
    expected = []
    for start in range(len(values) - length + 1):
        found = 0
        for value in values[start : start + length]:
            found = (found * int(MULTIPLIER) + value + 1) % 2**64
        expected.append(found ^ (found >> 29))
    assert run_hashes(np.array(values, dtype=np.uint64), length).tolist() == expected
