"""The bound against enumeration: no selection is better."""

import itertools

import pytest
import torch

from fineweb_mask.models.selection.certificate import tightened_bound, upper_bound
from fineweb_mask.models.selection.metrics.facility import Facility
from fineweb_mask.models.selection.objective import METRICS, Objective
from tests.models.selection.enumerable import probabilities, unit_rows


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("lamb", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_bound_holds_against_enumeration_from_any_start(name, lamb):
    rows, budget = unit_rows(12, 4, seed=5), 4
    quality = torch.rand(12, generator=torch.Generator().manual_seed(6))
    metric = METRICS[name](rows) if name != "facility" else Facility(rows, 5)
    objective = Objective(quality, budget, {name: metric}, linear_weight=lamb, weights={name: 1 - lamb})
    combinations = list(itertools.combinations(range(12), budget))
    masks = torch.zeros((len(combinations), 12), dtype=torch.bool)
    for mask, chosen in zip(masks, combinations, strict=True):
        mask[list(chosen)] = True
    best = float(objective.value(masks).max())
    for seed in range(5):
        bound = upper_bound(objective, probabilities(12, budget, seed))
        assert bound is not None
        assert bound >= best - 1e-6


def test_quality_alone_is_bounded_by_the_best_whatever_is_selected():
    """Such a selection comes from a budget of tokens, which leaves the best out where they are too long."""
    quality = torch.arange(10.0)
    mask = quality < 4
    objective = Objective(quality, 4, {}, linear_weight=1.0, weights={})
    assert tightened_bound(objective, mask.float(), mask, 4.5) == pytest.approx((6 + 7 + 8 + 9) / 4)
