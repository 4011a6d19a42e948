"""Select greedily, the strong classical baseline: always add the documents with the largest gains for their costs.

Gains are those of J over the whole budget. One document after the other is added where few are selected; of many, some
are added at once, of those that are alike one.
"""

import torch

from fineweb_mask.models.runtime.progress import track_by_size
from fineweb_mask.models.selection.solvers.problem import Problem, Solution

ROUNDS = 512  # of gains, about


def solve_greedy(problem: Problem) -> Solution:
    """Add documents until the budget is full; the inclusion falls from 1 in the order in which they are added."""
    objective, budget = problem.objective, problem.objective.budget
    mask = torch.zeros_like(budget.allowed)
    inclusion, left = torch.zeros(budget.n, device=mask.device), budget.limit
    at_once = max(1, round(budget.size / ROUNDS))
    for step in track_by_size("greedy picks", range(budget.n), round(budget.size), lambda _: at_once, part=(0, 0.9)):
        worth = budget.worth(objective.gains(mask))
        worth[mask | ~budget.allowed | (budget.costs > left)] = -torch.inf
        if problem.near is not None and at_once > 1:
            worth[worth < problem.near.take(worth).amax(0)] = -torch.inf
        order = worth.sort(descending=True, stable=True).indices[:at_once]
        order = order[(worth[order] > -torch.inf) & (budget.costs[order].cumsum(0) <= left)]
        if not len(order):
            break
        mask[order] = True
        left -= int(budget.costs[order].sum())
        inclusion[order] = 1 - step / budget.n
    return Solution(mask, inclusion)
