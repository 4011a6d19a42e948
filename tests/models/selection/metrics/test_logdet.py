"""`logdet`: the exact worth of a document, and the values at both ends."""

import math

import pytest
import torch

from fineweb_mask.models.selection.metrics.logdet import LogDet
from fineweb_mask.models.selection.rows import Rows
from tests.models.selection.enumerable import random_masks, unit_rows


@pytest.mark.parametrize("d", [5, 15])
def test_worth_is_exactly_what_a_document_adds_or_takes_away(d):
    metric, [mask] = LogDet(unit_rows(30, d)), random_masks(30, 8, 1)
    here, worth = metric.of_matrix(metric.moment(mask) / 8), metric.worth(mask)
    for document in range(30):
        other = mask.clone()
        other[document] = ~mask[document]
        change = float(metric.of_matrix(metric.moment(other) / 8) - here)
        assert float(worth[document]) == pytest.approx(-change if mask[document] else change, abs=1e-5)


def test_orthogonal_documents_are_best_and_equal_ones_worst():
    metric = LogDet(Rows(torch.cat([torch.eye(6), torch.eye(6)[:1].repeat(6, 1)])))
    even, one = torch.arange(12) < 6, torch.arange(12) >= 6
    values = metric.value(torch.stack([even, one]))
    torch.testing.assert_close(values, torch.tensor([6 * math.log(2), math.log(7)], dtype=torch.float64))
    assert float(metric.value(random_masks(12, 6, 50)).max()) <= float(values[0]) + 1e-9
