"""Select greedily, the strong classical baseline: always add the document with the largest gain for its cost.

Gains are those of J over the whole budget, which every metric updates as documents are added (`Metric.picks`).
"""

import torch

from fineweb_mask.models.runtime.progress import track_by_size
from fineweb_mask.models.selection.inputs import SelectionInputError
from fineweb_mask.models.selection.solvers.problem import Problem, Solution


def solve_greedy(problem: Problem) -> Solution:
    """Add documents one by one; the inclusion falls from 1 in the order in which they are added.

    A metric without `picks` raises SelectionInputError.
    """
    objective, budget = problem.objective, problem.objective.budget
    for name, metric in objective.active.items():
        if not metric.offers("picks"):
            raise SelectionInputError(
                f"metric {name!r} has no exact marginal gains: use solver 'mean_field' or 'policy_gradient'"
            )
    picks = [(objective.weights[name], metric.picks()) for name, metric in objective.active.items()]
    mask, left, chosen = torch.zeros_like(budget.allowed), budget.limit, list[int]()
    most = budget.limit if budget.counts_documents else budget.n
    for _ in track_by_size("greedy picks", range(most), round(budget.size), lambda _: 1, part=(0, 0.9)):
        open_ = budget.allowed & ~mask & (budget.costs <= left)
        if not bool(open_.any()):
            break
        gains = objective.linear
        for weight, one in picks:
            gains = gains + weight * one.gains()
        best = int(budget.worth(gains).masked_fill(~open_, -torch.inf).argmax())
        mask[best] = True
        left -= int(budget.costs[best])
        chosen.append(best)
        for _, one in picks:
            one.add(best)
    inclusion = torch.zeros(budget.n, device=objective.quality.device)
    inclusion[chosen] = 1 - torch.arange(len(chosen), device=inclusion.device) / most
    problem.history.record(len(chosen), objective.value_of(mask))
    return Solution(mask, inclusion)
