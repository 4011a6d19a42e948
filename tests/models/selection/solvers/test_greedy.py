"""Greedy against its definition."""

from dataclasses import replace

import pytest
import torch

from fineweb_mask.models.selection import SelectionSettings
from fineweb_mask.models.selection.metrics.near_duplicates import NearDuplicates
from fineweb_mask.models.selection.problem.token_budget import Knapsack
from fineweb_mask.models.selection.solvers.greedy import pick_among_candidates, solve_greedy
from fineweb_mask.models.selection.solvers.problem import Problem
from tests.models.selection.enumerable import METRICS, objective_of, partial_value, random_masks


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


@pytest.mark.parametrize("metric", ["pairwise", "disf"])
@pytest.mark.parametrize("by_tokens", [False, True])
def test_rounds_of_one_pick_are_greedys_and_longer_ones_nearly_as_good(metric, by_tokens, corpus):
    features, quality = corpus[0][:200].copy(), corpus[1][:200]
    features[100:120] = features[:20]
    rows, objective = objective_of(features, quality, metric, 20)
    objective.metrics["near"], objective.weights["near"] = NearDuplicates.of(rows, 0.9), 0.5
    if by_tokens:
        lengths = torch.randint(50, 150, (200,), generator=torch.Generator().manual_seed(0))
        objective = replace(objective, knapsack=Knapsack.of(lengths, 2000))
    problem = Problem(rows, objective, SelectionSettings(), torch.Generator())
    greedy = solve_greedy(problem).mask
    assert torch.equal(pick_among_candidates(problem, 200, 1), greedy)
    if not by_tokens:
        assert torch.equal(pick_among_candidates(problem, 1, 20), greedy)
    random = float(objective.value(random_masks(200, 20, 50)).mean())
    some = pick_among_candidates(problem, 40, 4)
    assert objective.is_filled_by(some)
    assert objective.value_of(some) - random > 0.98 * (objective.value_of(greedy) - random)
