"""The code that kernel metrics share, against an enumeration of all subsets."""

import itertools

import pytest
import torch

from tests.models.selection.enumerable import METRICS, unit_rows


@pytest.mark.parametrize("name", ["pairwise", "disf"])
def test_random_value_is_the_mean_over_all_subsets(name):
    rows, budget = unit_rows(9, 3), 4
    metric = METRICS[name](rows)
    masks = torch.zeros((126, 9), dtype=torch.bool)
    for mask, chosen in zip(masks, itertools.combinations(range(9), budget), strict=True):
        mask[list(chosen)] = True
    values = metric.value(masks)
    mean = values.mean() if name == "pairwise" else -values.square().mean().sqrt()
    assert metric.random_value(budget) == pytest.approx(float(mean), rel=1e-5)
