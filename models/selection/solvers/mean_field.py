"""Maximise the objective by its gradient in closed form: relax, keep what the budget takes, refine by swaps (ours).

Every document has an inclusion probability pi_i, and all together fill the budget. Each step of the relaxation goes
towards the smoothed selection of the documents of the largest gradient, sigmoid((g_i / cost_i - tau) / T), where tau
makes the budget exact and the temperature T falls (Frank and Wolfe's steps, smoothed). How far is read off the gradient
before and after the last step: where it turned on the way, the step was too long.

Then the documents that gain most and those that lose least change places, many at once, where the ones gain more than
the others lose. Of documents that are alike only the best takes part: they share their gains. Where all swaps together
do not raise the objective, the better half of them is tried, and so on down to one. With a budget of tokens a
document's gain is that for its cost, and what room is left is filled.
"""

import torch
from torch import Tensor

from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.selection.neighbours import Neighbours
from fineweb_mask.models.selection.objective import Objective
from fineweb_mask.models.selection.solvers.problem import Problem, Solution

HOT, COLD = 0.5, 0.02  # temperature in standard deviations of the gradient: at first, and in the end
FIRST, SHORTEST, LONGEST = 0.3, 0.05, 0.5  # shares of the way
GROWTH = 1.5  # of a step over the last one, at most
ROUNDS = 40  # of swaps, at most
LEAST_RISE = 1e-6  # share of what was gained: a round that gains less is the last
LARGEST_BATCH = 1 / 4  # share of the selected documents that are swapped at once
SMALL = 16  # most documents for which every exchange is evaluated exactly


def solve_mean_field(problem: Problem, *, rounds: int = ROUNDS) -> Solution:
    """Relax, and refine the best selection on the way in at most so many rounds of swaps."""
    objective, budget = problem.objective, problem.objective.budget
    best = budget.fill(budget.worth(objective.gradient(budget.even)))
    if bool(best[budget.allowed].all()):
        return Solution(best, best.float())
    relaxed = relax(objective)
    rounded = [best, *map(budget.fill, (relaxed, budget.worth(objective.gradient(relaxed))))]
    best = max(rounded, key=objective.value_of)
    best = refine(objective, best, problem.near, rounds)
    return Solution(best, objective.inclusion(best))


def relax(objective: Objective) -> Tensor:
    """Return inclusion probabilities of a high objective, (n,) float32."""
    budget = objective.budget
    pi, share = budget.even, FIRST
    gradient = objective.gradient(pi)
    steps = min((metric.relaxation for metric in objective.active.values()), default=0)
    for step in track("steps of the relaxation", range(steps)):
        worth = budget.worth(gradient)
        temperature = HOT * (COLD / HOT) ** (step / max(1, steps - 1)) * budget.deviation(worth)
        if temperature <= 0:  # all documents gain the same
            break
        way = budget.probabilities(worth, temperature) - pi
        pi = pi + share * way
        rise, gradient = float(gradient.double() @ way.double()), objective.gradient(pi)
        fall = rise - float(gradient.double() @ way.double())  # of the slope along the way
        best = share * rise / fall if fall > 0 else LONGEST
        share = min(max(best, SHORTEST), GROWTH * share, LONGEST)
    return pi


def refine(objective: Objective, mask: Tensor, near: Neighbours | None, rounds: int = ROUNDS) -> Tensor:
    """Swap while the objective rises: (n,) bool, never worse than `mask`.

    Parameters
    ----------
    objective
        What is maximised.
    mask
        The selection to begin with, (n,) bool, full.
    near
        Documents that are like each document, itself included: of these one is swapped in a round.
    rounds
        Most rounds.
    """
    budget, reached = objective.budget, objective.value_of(mask)
    first, most = reached, max(1, round(LARGEST_BATCH * int(mask.sum())))
    for _ in track("rounds of swaps", range(rounds)):
        worth, before = budget.worth(objective.gains(mask)), reached
        gain = torch.where(mask | ~budget.allowed, -torch.inf, worth)
        loss = torch.where(mask, worth, torch.inf)
        add, drop = ~mask & budget.allowed, mask
        if near is not None:
            add, drop = add & (gain >= near.take(gain).amax(0)), drop & (loss <= near.take(loss).amin(0))
        into, out = add.nonzero()[:, 0], drop.nonzero()[:, 0]
        into = into[gain[into].sort(descending=True, stable=True).indices]
        out = out[loss[out].sort(stable=True).indices]
        pairs = min(len(into), len(out), most)
        pairs = int((gain[into[:pairs]] > loss[out[:pairs]]).sum())
        order = worth.double()
        span = order.max() - order.min() + 1
        order[into] += span  # before all others, which take the room that is left
        while pairs:
            kept, leaving = mask.clone(), out[:pairs]
            kept[leaving] = False
            swapped = budget.fill(order.index_add(0, leaving, -span.expand(pairs)), kept)
            if (value := objective.value_of(swapped)) > reached:
                mask, reached, most = swapped, value, 2 * pairs
                break
            pairs //= 2
        if reached - before <= LEAST_RISE * (reached - first):
            break
    return _exchange(objective, mask) if budget.n <= SMALL else mask


def _exchange(objective: Objective, mask: Tensor) -> Tensor:
    """Make the best of all exchanges until none helps: (n,) bool.

    An exchange is a swap of one document for another, a drop, or an addition for which the selected documents of the
    least worth make room. The room left is filled.
    """
    budget, nobody = objective.budget, mask.new_zeros(0, dtype=torch.int64)
    for _ in range(ROUNDS):
        worth, others = budget.worth(objective.gains(mask)).double(), [mask]
        first = worth.max() - worth.min() + 1  # makes a document come before or after all others
        for out in mask.nonzero():
            room = budget.limit - int(budget.costs[mask].sum()) + int(budget.costs[out])
            fits = (~mask & budget.allowed & (budget.costs <= room)).nonzero()
            kept, order = mask.index_fill(0, out, value=False), worth.index_add(0, out, -first[None])
            others += [budget.fill(order.index_add(0, into, first.expand(len(into))), kept) for into in [nobody, *fits]]
        if not budget.counts_documents:
            for into in (~mask & budget.allowed & (budget.costs <= budget.limit)).nonzero():
                alone = torch.zeros_like(mask).index_fill(0, into, value=True)
                others += [budget.fill(worth + mask * first, alone), budget.fill(worth, alone)]
        best = int(objective.value(torch.stack(others)).argmax())
        if not best:  # of equal ones the first
            break
        mask = others[best]
    return mask
