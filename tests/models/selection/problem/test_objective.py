"""The objective: quality and metrics under their weights."""

import pytest
import torch

from fineweb_mask.models.selection.metrics.facility import Facility
from fineweb_mask.models.selection.problem.objective import Objective
from fineweb_mask.models.selection.problem.token_budget import top
from fineweb_mask.models.selection.rows import Rows
from tests.models.selection.enumerable import METRICS, partial_value, random_masks, unit_rows


@pytest.fixture
def objective():
    rows = unit_rows(20, 5)
    quality = torch.rand(20, generator=torch.Generator().manual_seed(4))
    metrics = {name: kind(rows) for name, kind in METRICS.items()}
    return Objective(
        quality,
        6,
        metrics,
        linear_weight=0.7,
        weights=dict.fromkeys(METRICS, 0.0) | {"pairwise": 0.5, "facility": 2.0},
        constant=0.25,
    )


def test_the_value_weighs_quality_and_metrics(objective):
    masks, alone = random_masks(20, 6, 5), []
    for mask in masks:
        pairwise, facility = (float(objective.metrics[name].value(mask[None])[0]) for name in ("pairwise", "facility"))
        alone.append(0.7 * float(objective.quality[mask].mean()) + 0.5 * pairwise + 2 * facility + 0.25)
        assert objective.value_of(mask) == pytest.approx(alone[-1], abs=1e-6)
    assert objective.value(masks).tolist() == pytest.approx(alone, abs=1e-6)


def test_a_metric_without_weight_is_neither_active_nor_restricted(objective):
    assert objective.active.keys() == {"pairwise", "facility"}
    batch = objective.restrict(torch.arange(10), 3)
    assert (batch.n, batch.budget) == (10, 3)
    assert batch.metrics.keys() == {"pairwise", "facility"}


@pytest.mark.parametrize("metric", METRICS)
def test_worth_is_the_change_of_a_single_document(metric, corpus):
    features, quality = corpus[0][:50], corpus[1][:50]
    rows = Rows(torch.from_numpy(features))
    made = Facility(rows, 50) if metric == "facility" else METRICS[metric](rows)
    objective = Objective(torch.from_numpy(quality), 10, {metric: made}, linear_weight=0.5, weights={metric: 1.0})
    mask = top(objective.quality, 10)
    worth = objective.marginal_gains(mask)
    here = partial_value(objective, metric, mask)
    for document in range(50):
        other = mask.clone()
        other[document] = ~mask[document]
        change = partial_value(objective, metric, other) - here
        expected = change if not mask[document] else -change
        # disf is seen through its tangent, which is within a share of the change
        tolerance = 0.15 * abs(expected) + 0.02 if metric == "disf" else 2e-5
        assert float(worth[document]) == pytest.approx(expected, abs=tolerance)
