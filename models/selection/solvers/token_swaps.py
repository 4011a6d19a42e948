"""Refine a selection that fills a budget of tokens (ours): swaps of documents of unequal length.

A document's worth is compared at the price of tokens: what the last token that fits is worth. A swap keeps within the
budget, and dropping or adding alone is a swap with nobody. What room is left after a round is filled.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fineweb_mask.models.selection.problem.objective import Objective
from fineweb_mask.models.selection.problem.token_budget import Knapsack
from fineweb_mask.models.selection.solvers.problem import Problem, Solution

CANDIDATES = 16  # cheapest drops and best additions, each of which is tried with every partner that fits
LEAST_GAIN = 1e-7  # of the range of worths in the pool: smaller gains are float32 rounding
LEAST_RISE = 1e-6  # of the sizes of the objective's terms: a smaller one is rounding, and could go round in circles
NOBODY, FEWEST = 1 / 8, 8  # of a pool: places without a document on either side, and the fewest
SMALL = 64  # most documents for which every swap is evaluated exactly
ROUNDS = 6  # most solves where the denominators depend on what is selected
SETTLED = 1e-3  # of the mass: a smaller change needs no further solve


def price(knapsack: Knapsack, worth: Tensor) -> float:
    """Return the worth per cost at which documents of a worth (n,), sorted by it, fill the budget."""
    ratio = worth.double() / knapsack.costs
    order = ratio.sort(descending=True, stable=True).indices
    last = int((knapsack.tokens[order].cumsum(0) <= knapsack.limit).sum())
    return float(ratio[order[min(last, len(order) - 1)]])


def swap_in_pool(
    worth: NDArray[np.float64],  # (p,), less the price of the tokens
    cross: NDArray[np.float32],  # (p, p), how much one document reduces the worth of the other
    lengths: NDArray[np.int64],  # (p,) tokens
    chosen: NDArray[np.bool_],  # (p,)
    *,
    room: int,  # tokens
    most: int,
) -> tuple[NDArray[np.bool_], int]:
    """Make at most `most` swaps, each the best of those considered: which are selected (p,), and the swaps made."""
    n = len(worth)
    nobody = max(FEWEST, round(NOBODY * n))
    worth = np.append(worth, np.zeros(2 * nobody))
    lengths = np.append(lengths, np.zeros(2 * nobody, dtype=np.int64))
    cross = np.pad(cross, (0, 2 * nobody))
    chosen = np.append(chosen, np.arange(2 * nobody) < nobody)
    least = LEAST_GAIN * float(np.ptp(worth))
    for swaps in range(most):
        inside, outside = np.flatnonzero(chosen), np.flatnonzero(~chosen)
        drops, additions = _smallest(inside, worth[inside]), _smallest(outside, -worth[outside])
        found = [
            _best_pair(worth, cross, lengths, drops, outside, room),
            _best_pair(worth, cross, lengths, inside, additions, room),
        ]
        best, out, into = max(found)
        if best <= least:
            return chosen[:n], swaps
        worth += np.where(np.arange(len(worth)) != out, cross[out], 0) - np.where(
            np.arange(len(worth)) != into, cross[into], 0
        )
        room += int(lengths[out] - lengths[into])
        chosen[out], chosen[into] = False, True
    return chosen[:n], most


def _smallest(documents: NDArray[np.int64], values: NDArray[np.float64]) -> NDArray[np.int64]:
    if len(documents) <= CANDIDATES:
        return documents
    return documents[np.argpartition(values, CANDIDATES)[:CANDIDATES]]


def _best_pair(
    worth: NDArray[np.float64],
    cross: NDArray[np.float32],
    lengths: NDArray[np.int64],
    drops: NDArray[np.int64],
    additions: NDArray[np.int64],
    room: int,
) -> tuple[float, int, int]:
    """Find the best swap of one of the drops for one of the additions that fits: its gain and the two documents."""
    gains = worth[additions] - worth[drops][:, None] + cross[np.ix_(drops, additions)]
    gains = np.where(lengths[additions] - lengths[drops][:, None] <= room, gains, -np.inf)
    out, into = np.unravel_index(int(gains.argmax()), gains.shape)
    return float(gains[out, into]), int(drops[out]), int(additions[into])


def exchanged(knapsack: Knapsack, mask: Tensor, drops: Tensor, additions: Tensor, priority: Tensor) -> Tensor:
    """Drop documents, add those of `additions` that fit in the order of priority (n,), then fill: (n,) bool."""
    swapped = mask.clone()
    swapped[drops] = False
    wanted = priority.double() - priority.double().max() - 1
    wanted[additions] -= wanted.min() - 1
    wanted[drops] = 2 * wanted.min() - 1
    return knapsack.fill(wanted, swapped)


def polish(objective: Objective, mask: Tensor) -> Tensor:
    """Make the best of all exchanges in a small block until none helps: (n,) bool.

    An exchange is a swap of one document for another, a drop, or an addition for which the selected documents worth
    least per token make room. The room left is filled.
    """
    knapsack = objective.knapsack
    if knapsack is None or objective.n > SMALL:
        return mask
    while True:
        priority, others = objective.priority(objective.settled(mask.float()).worth(mask)), [mask]
        nobody = mask.new_zeros(0, dtype=torch.int64)
        for out in mask.nonzero():
            room = knapsack.limit - int(knapsack.tokens[mask].sum()) + int(knapsack.tokens[out])
            others.append(exchanged(knapsack, mask, out, nobody, priority))
            fits = (~mask & (knapsack.tokens <= room)).nonzero()
            others += [exchanged(knapsack, mask, out, into, priority) for into in fits]
        kept_first = priority + mask * (priority.max() - priority.min() + 1)
        for into in (~mask & (knapsack.tokens <= knapsack.limit)).nonzero():
            alone = torch.zeros_like(mask).index_fill(0, into, value=True)
            others += [knapsack.fill(kept_first, alone), knapsack.fill(priority, alone)]
        values = objective.value(torch.stack(others))
        best = int(values.argmax())
        if values[best] - values[0] <= LEAST_RISE * objective.size_of(mask):
            return mask
        mask = others[best]


def settle(problem: Problem, solve: Callable[[Problem], Solution]) -> Solution:
    """Solve, again and again where the denominators depend on what is selected: the best solution.

    That is so where a budget of tokens holds selections of unequal mass. Each solve takes the denominators of the last
    answer, and charges every document for how it enlarges them.
    """
    objective = problem.objective
    knapsack = objective.knapsack
    if knapsack is None or knapsack.by_tokens:
        return solve(problem)
    best: tuple[float, Solution] | None = None
    at = objective.settled(torch.full_like(objective.quality, knapsack.share))
    for _ in range(ROUNDS):
        solution = solve(replace(problem, objective=at))
        reached = objective.value_of(solution.mask)
        if best is None or reached > best[0]:
            best = reached, solution
        size = at.size
        at = objective.settled(solution.mask.float())
        if abs(at.size - size) <= SETTLED * size:
            break
    assert best is not None  # noqa: S101 - the loop runs at least once
    return best[1]
