"""`facility` with short lists, against the expectation over all masks, and at certain inclusion."""

import pytest
import torch

from fineweb_mask.models.selection.metrics.facility import Facility
from tests.models.selection.enumerable import (
    bernoulli_expectation,
    central_differences,
    probabilities,
    random_masks,
    unit_rows,
)


def test_facility_is_exact_with_short_lists():
    rows = unit_rows(40, 6)
    short, direct = Facility(rows, 3), Facility(rows)
    masks = random_masks(40, 2, 8)
    expected = direct.value(masks)
    assert short.graph.k == 3
    torch.testing.assert_close(short.value(masks), expected)


def test_facility_gradient_is_that_of_the_expectation_over_all_masks():
    rows = unit_rows(10, 4)
    similarity = (rows.block(slice(None)) @ rows.block(slice(None)).T).clamp(min=0).double()
    metric = Facility(rows, 10)
    last = metric.graph.similarity[-1].double()  # what a document counts with if nothing is selected

    def value(mask):
        best = similarity[:, mask].amax(1) if mask.any() else last
        return float(best.mean())

    pi = probabilities(10, 4)
    assert metric.expected(pi.float()) == pytest.approx(bernoulli_expectation(value, pi), abs=1e-6)
    expected = central_differences(lambda p: bernoulli_expectation(value, p), pi)
    torch.testing.assert_close(metric.gradient(pi.float()).double(), expected.double(), rtol=1e-4, atol=1e-6)


def test_facility_gradient_survives_certain_inclusion():
    metric = Facility(unit_rows(20, 4), 20)
    pi = torch.zeros(20)
    pi[:5] = 1.0  # products of (1 - pi) are zero here
    assert torch.isfinite(metric.gradient(pi)).all()
    assert metric.expected(pi) == pytest.approx(float(metric.value((pi > 0)[None])[0]), abs=1e-6)
