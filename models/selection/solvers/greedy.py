"""Select greedily, the strong classical baseline: always add the document with the largest gain.

Gains are those of J with the denominators of the full budget, updated incrementally by each metric
(`SupportsGains`). Where gains are lazy, only documents that could win are evaluated again. With a budget of tokens it
is the document with the largest gain per token among those that still fit.
"""

import torch
from torch import Tensor

from fineweb_mask.models.runtime.progress import track_by_size
from fineweb_mask.models.selection.inputs import SelectionInputError
from fineweb_mask.models.selection.metrics.base import Gains, LazyGains, SupportsGains
from fineweb_mask.models.selection.objective import Objective
from fineweb_mask.models.selection.solvers.problem import Problem, Solution


def solve_greedy(problem: Problem) -> Solution:
    """Add documents one by one; the inclusion falls from 1 in the order in which they are added.

    A metric without gains raises SelectionInputError.
    """
    return pick_greedily(problem, part=(0, 0.9))  # the proof follows


def pick_greedily(problem: Problem, *, part: tuple[float, float] = (0, 0)) -> Solution:
    """Solve as `solve_greedy` does, where the picks are `part` of the work that shows its progress."""
    objective = problem.objective
    every: list[Gains] = []
    for name, metric in objective.active.items():
        if not isinstance(metric, SupportsGains):
            raise SelectionInputError(
                f"metric {name!r} has no exact marginal gains: use solver 'mean_field' or 'policy_gradient'"
            )
        every.append(metric.gains(objective.size, objective.weights[name]))
    lazy = [one for one in every if isinstance(one, LazyGains)]
    exact = [one for one in every if not isinstance(one, LazyGains)]
    mask = torch.zeros(objective.n, dtype=torch.bool, device=objective.quality.device)
    inclusion = torch.zeros(objective.n, device=objective.quality.device)
    knapsack, shut = objective.knapsack, mask  # shut: selected, or too long to fit
    most, left = (objective.budget, 0) if knapsack is None else (objective.n, knapsack.limit)
    for pick in track_by_size("greedy picks", range(most), objective.budget, lambda _: 1, part=part):
        if knapsack is not None and bool((shut := mask | (knapsack.tokens > left)).all()):
            break
        gains = objective.linear
        for one in exact:
            gains = gains + one.gains()
        chosen = _best(gains.masked_fill(shut, -torch.inf), lazy, objective)
        mask[chosen] = True
        left -= 0 if knapsack is None else int(knapsack.tokens[chosen])
        inclusion[chosen] = 1 - pick / most
        for one in every:
            one.add(chosen)
    problem.history.record(objective.budget, objective.value_of(mask))
    return Solution(mask, inclusion)


def _best(gains: Tensor, lazy: list[LazyGains], objective: Objective) -> int:
    """Find the document of the largest gain for its cost, evaluating lazy gains only where they may decide."""
    upper = gains
    for one in lazy:
        upper = upper + one.gains()
    if not lazy:
        return int(objective.priority(upper).argmax())
    fresh: set[int] = set()
    while (candidate := int(objective.priority(upper).argmax())) not in fresh:
        upper[candidate] = gains[candidate] + sum(one.refresh(candidate) for one in lazy)
        fresh.add(candidate)
    return candidate
