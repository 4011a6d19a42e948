"""Batches by a budget of tokens: each row once, within the budget, smaller after the device ran out of memory."""

import logging

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from fineweb_mask.models.forward.batches import for_each_batch, padded_batches
from fineweb_mask.models.forward.tokens import TokenIds


def batches(lengths, budget):
    found = []
    for_each_batch(np.array(lengths, dtype=np.int64), budget, lambda rows: found.append(rows.tolist()))
    return found


@given(st.lists(st.integers(0, 600), max_size=60), st.integers(1, 2_000))
@example([3, 512, 7, 7, 100, 2, 512, 1], 1024)
def test_never_more_than_the_budget_and_no_batch_that_the_next_row_would_fit_in(lengths, budget):
    found = batches(lengths, budget)
    assert sorted(row for rows in found for row in rows) == list(range(len(lengths)))
    longest = [max([1, *(lengths[row] for row in rows)]) for rows in found]
    assert longest == sorted(longest, reverse=True)
    for index, rows in enumerate(found):
        assert len(rows) == 1 or len(rows) * longest[index] <= budget
        assert index == len(found) - 1 or (len(rows) + 1) * longest[index] > budget


class SmallDevice:
    """A device with memory for `memory` padded tokens."""

    def __init__(self, lengths, memory):
        self.lengths, self.memory = lengths, memory
        self.done, self.refused = [], 0

    def __call__(self, rows):
        if len(rows) * max(self.lengths[rows]) > self.memory:
            self.refused += 1
            raise torch.OutOfMemoryError("simulated")
        self.done += rows.tolist()


def test_out_of_memory_halves_the_budget_and_is_remembered(caplog):
    lengths = np.array([100, 90, 80, 70, 10, 10, 5, 1])
    device = SmallDevice(lengths, 130)
    budget = for_each_batch(lengths, 1_000, device)
    assert sorted(device.done) == list(range(8))
    assert (device.refused, budget) == (3, 100)  # 8 rows of 100, then 400 // 100, then 200 // 100
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING][-1] == (
        "no device memory for 2 texts of 100 tokens: continuing with at most 100 tokens per forward pass"
    )
    again = SmallDevice(lengths, 130)
    for_each_batch(lengths, budget, again)
    assert (sorted(again.done), again.refused) == (list(range(8)), 0)
    with pytest.raises(RuntimeError, match="simulated"):  # a row that does not fit by itself
        for_each_batch(lengths, 500, SmallDevice(lengths, 50))


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([1, 0], {"input_ids": [[8, 99, 99], [5, 6, 7]], "attention_mask": [[1, 0, 0], [1, 1, 1]]}),
        ([2], {"input_ids": [[99]], "attention_mask": [[0]]}),
        ([3, 0], {"input_ids": [[9, 10, 11], [5, 6, 7]]}),
    ],
)
def test_rows_are_padded_to_their_longest(rows, expected):
    padded = padded_batches(TokenIds.of([[5, 6, 7], [8], [], [9, 10, 11]]), padding=99, device="cpu")
    index, batch = padded(np.array(rows))
    assert index.tolist() == rows
    assert {name: values.tolist() for name, values in batch.items()} == expected
