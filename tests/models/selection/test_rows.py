"""Rows read in blocks and without a copy give the same answers as in the plain case."""

import numpy as np
import pytest
import torch

from fineweb_mask.models.selection import SelectionSettings, select
from fineweb_mask.models.selection.rows import Rows
from tests.models.selection.enumerable import METRICS


@pytest.mark.parametrize("metric", METRICS)
def test_blocks_and_copies_do_not_change_the_answer(metric, corpus, monkeypatch):
    features, quality = corpus
    chosen = SelectionSettings(metrics=metric, select_ratio=0.1, lamb=0.3)
    whole = select(features.astype(np.float16), quality, chosen)
    monkeypatch.setattr("fineweb_mask.models.selection.rows.COPY_BYTES", {"cpu": 0})
    monkeypatch.setattr("fineweb_mask.models.selection.rows.BLOCK_BYTES", {"cpu": 4 * 16 * 37})
    monkeypatch.setattr("fineweb_mask.models.selection.graphs.neighbours.PRODUCT_ELEMENTS", {"cpu": 70 * 70})
    in_blocks = select(features.astype(np.float16), quality, chosen)
    assert in_blocks.objective == pytest.approx(whole.objective, abs=0.01)
    assert len(np.intersect1d(whole.indices, in_blocks.indices)) > 0.8 * len(whole.indices)


def test_float16_rows_are_never_copied_whole_when_large(corpus, monkeypatch):
    monkeypatch.setattr("fineweb_mask.models.selection.rows.COPY_BYTES", {"cpu": 0})
    stored = torch.from_numpy(corpus[0]).half()
    rows = Rows(stored, torch.ones(len(stored)))
    assert rows._stored.data_ptr() == stored.data_ptr()
