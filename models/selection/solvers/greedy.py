"""Select greedily, the strong classical baseline: always add the document with the largest gain.

Gains are those of J with the denominators of the full budget, updated incrementally by each metric
(`SupportsGains`). Where gains are lazy, only documents that could win are evaluated again. With a budget of tokens it
is the document with the largest gain per token among those that still fit.
"""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from fineweb_mask.models.runtime.progress import track_by_size
from fineweb_mask.models.selection.inputs import SelectionInputError
from fineweb_mask.models.selection.metrics.base import Gains, LazyGains, RestrictableGains, SupportsGains
from fineweb_mask.models.selection.problem.objective import Objective
from fineweb_mask.models.selection.solvers.problem import Problem, Solution

MOST_REFRESHED, REFRESHED_GAINS = 32, 1 << 16  # stale gains evaluated at once: in small blocks, a call costs most


def solve_greedy(problem: Problem) -> Solution:
    """Add documents one by one; the inclusion falls from 1 in the order in which they are added.

    A metric without gains raises SelectionInputError.
    """
    return pick_greedily(problem, part=(0, 0.9))  # the proof follows


def pick_greedily(problem: Problem, *, part: tuple[float, float] = (0, 0)) -> Solution:
    """Solve as `solve_greedy` does, where the picks are `part` of the work that shows its progress."""
    objective = problem.objective
    most = objective.budget if objective.knapsack is None else objective.n
    left = 0 if objective.knapsack is None else objective.knapsack.limit
    chosen = _pick(  # which drops the tracked picks at its end: later work would count as theirs
        objective,
        _gains(objective),
        track_by_size("greedy picks", range(most), objective.budget, lambda _: 1, part=part),
        left,
    )
    mask = torch.zeros(objective.n, dtype=torch.bool, device=objective.quality.device)
    inclusion = torch.zeros(objective.n, device=objective.quality.device)
    mask[chosen] = True
    inclusion[chosen] = 1 - torch.arange(len(chosen), device=inclusion.device) / most
    problem.history.record(objective.budget, objective.value_of(mask))
    return Solution(mask, inclusion)


def pick_among_candidates(problem: Problem, n_candidates: int, n_rounds: int) -> Tensor:
    """Pick greedily among the candidates of largest gain, which are found again in every round: (n,) bool.

    All metrics must have gains that can be restricted (`RestrictableGains`). A round costs one pass over all documents
    and one product of the candidates with each other, where `pick_greedily` takes a pass for every pick.
    """
    objective, every = problem.objective, []
    for one in _gains(objective):
        assert isinstance(one, RestrictableGains)  # noqa: S101 - the caller chooses the metrics
        every.append(one)
    knapsack = objective.knapsack
    mask = torch.zeros(objective.n, dtype=torch.bool, device=objective.quality.device)
    for rounds in range(n_rounds, 0, -1):
        if knapsack is None:
            left, shut = objective.budget - int(mask.sum()), mask
        else:
            left = knapsack.limit - int(knapsack.tokens[mask].sum())
            shut = mask | (knapsack.tokens > left)
        gains = objective.linear + torch.stack([one.gains() for one in every]).sum(0)
        open_ = int((~shut).sum())
        if not open_ or not left:
            break
        rank = objective.priority(gains).masked_fill(shut, -torch.inf)
        candidates = rank.topk(min(n_candidates, open_)).indices.sort().values
        among = objective.restrict(candidates, objective.budget)
        share = math.ceil(left / rounds)
        picks = range(share if knapsack is None else len(candidates))
        chosen = candidates[_pick(among, [one.among(candidates) for one in every], picks, left, share)]
        mask[chosen] = True
        for one in every:
            one.restart(mask)
    return mask if knapsack is None else knapsack.fill(objective.priority(gains), mask)


def _gains(objective: Objective) -> list[Gains]:
    every: list[Gains] = []
    for name, metric in objective.active.items():
        if not isinstance(metric, SupportsGains):
            raise SelectionInputError(
                f"metric {name!r} has no exact marginal gains: use solver 'mean_field' or 'policy_gradient'"
            )
        every.append(metric.gains(objective.size, objective.weights[name]))
    return every


def _pick(
    objective: Objective, every: Sequence[Gains], picks: Iterable[int], left: int, share: int | None = None
) -> list[int]:
    """Add one document after the other: which. With a knapsack, those that fit into `left`, until `share` is used."""
    lazy = [one for one in every if isinstance(one, LazyGains)]
    exact = [one for one in every if not isinstance(one, LazyGains)]
    mask = torch.zeros(objective.n, dtype=torch.bool, device=objective.quality.device)
    knapsack, shut = objective.knapsack, mask  # shut: selected, or too long to fit
    end, chosen = left - (left if share is None else share), []
    for _ in picks:
        if knapsack is not None and (left <= end or bool((shut := mask | (knapsack.tokens > left)).all())):
            break
        gains = objective.linear
        for one in exact:
            gains = gains + one.gains()
        best = _best(gains.masked_fill(shut, -torch.inf), lazy, objective)
        mask[best] = True
        left -= 0 if knapsack is None else int(knapsack.tokens[best])
        chosen.append(best)
        for one in every:
            one.add(best)
    return chosen


def _best(gains: Tensor, lazy: list[LazyGains], objective: Objective) -> int:
    """Find the document of the largest gain for its cost, evaluating lazy gains only where they may decide."""
    upper = gains
    for one in lazy:
        upper = upper + one.gains()
    if not lazy:
        return int(objective.priority(upper).argmax())
    at_once = max(1, min(MOST_REFRESHED, REFRESHED_GAINS // objective.n))
    fresh = torch.zeros_like(gains, dtype=torch.bool)
    while not fresh[candidate := int((priority := objective.priority(upper)).argmax())]:
        stale = priority.masked_fill(fresh, -torch.inf).topk(min(at_once, objective.n)).indices
        upper[stale] = gains[stale] + torch.stack([one.refresh(stale) for one in lazy]).sum(0)
        fresh[stale] = True
    return candidate
