"""Greedy against its definition."""

import pytest
import torch

from fineweb_mask.models.selection import SelectionSettings
from fineweb_mask.models.selection.solvers.greedy import solve_greedy
from fineweb_mask.models.selection.solvers.problem import Problem
from tests.models.selection.enumerable import METRICS, objective_of, partial_value


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("held", [True, False])
def test_greedy_adds_the_document_that_gains_most(metric, held, corpus, monkeypatch):
    if not held:
        monkeypatch.setattr("fineweb_mask.models.selection.metrics.facility.DENSE_BYTES", {"cpu": 0})
        monkeypatch.setattr("fineweb_mask.models.selection.metrics.kernel.WHOLE_KERNEL", 0)
    features, quality = corpus[0][:60], corpus[1][:60]
    rows, objective = objective_of(features, quality, metric, 8)
    mask = torch.zeros(60, dtype=torch.bool)
    for _ in range(8):
        values = torch.full((60,), -torch.inf, dtype=torch.float64)
        for candidate in (~mask).nonzero()[:, 0].tolist():
            mask[candidate] = True
            values[candidate] = partial_value(objective, metric, mask)
            mask[candidate] = False
        mask[int(values.argmax())] = True
    solution = solve_greedy(Problem(rows, objective, SelectionSettings(), torch.Generator()))
    assert solution.mask.nonzero()[:, 0].tolist() == mask.nonzero()[:, 0].tolist()
    assert set(solution.inclusion.topk(8).indices.tolist()) == set(mask.nonzero()[:, 0].tolist())
