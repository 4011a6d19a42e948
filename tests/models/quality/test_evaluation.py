"""Held-out metrics: compared with values computed by hand, and properties for any scores."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fineweb_mask.models.quality.evaluation import evaluate, reliability_bins


def test_a_case_worked_out_by_hand():
    scores = np.array([0.95, 0.85, 0.65, 0.35, 0.15], dtype=np.float32)
    positive = np.array([True, True, False, True, False])
    found = evaluate(scores, positive)
    assert found.precision == pytest.approx(2 / 3)
    assert found.recall == pytest.approx(2 / 3)
    assert found.f1 == pytest.approx(2 / 3)
    assert found.roc_auc == pytest.approx(5 / 6)
    assert (found.documents, found.positive) == (5, 3)
    assert found.calibration_error == pytest.approx((0.05 + 0.15 + 0.65 + 0.65 + 0.15) / 5, abs=1e-6)
    assert [(one.low, one.documents) for one in found.reliability] == [(n / 10, 1) for n in (1, 3, 6, 8, 9)]
    found = evaluate(np.array([0.1, 0.2], dtype=np.float32), np.array([False, True]))  # nothing above one half
    assert (found.precision, found.recall, found.f1, found.roc_auc) == (0.0, 0.0, 0.0, 1.0)


@given(st.lists(st.tuples(st.floats(0, 1, width=32), st.booleans()), min_size=1, max_size=60))
def test_bins_hold_every_document_once_and_their_own_scores(pairs):
    scores = np.array([score for score, _ in pairs], dtype=np.float32)
    positive = np.array([label for _, label in pairs])
    bins = reliability_bins(scores, positive)
    assert sum(one.documents for one in bins) == len(pairs)
    assert sum(one.documents * one.positive_share for one in bins) == pytest.approx(positive.sum())
    assert sum(one.documents * one.mean_score for one in bins) == pytest.approx(scores.sum(dtype=np.float64), abs=1e-5)
    assert all(one.low - 1e-6 <= one.mean_score <= one.high + 1e-6 for one in bins)
