"""Take documents by several rankings in turn."""

from collections import deque
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fineweb_mask.models.selection.solvers.problem import Problem


def in_turn(rankings: Sequence[NDArray[np.integer]], others: Tensor, problem: Problem) -> Tensor:
    """Return minus the number of documents taken before each, (n,) float64: rankings take their best not taken.

    Parameters
    ----------
    rankings
        Documents of each ranking, best first; those at the end may be missing.
    others
        Worth of every document, (n,): in this order follow those that are not taken when the budget is full.
    problem
        Says what the budget is.
    """
    n, knapsack = len(others), problem.objective.knapsack
    priority = torch.empty(n, dtype=torch.float64, device=others.device)
    steps = torch.arange(n, dtype=torch.float64, device=others.device)
    priority[others.sort(descending=True, stable=True).indices] = -n - steps
    lengths = None if knapsack is None else knapsack.tokens.tolist()
    left = problem.objective.budget if knapsack is None else knapsack.limit
    taken, order, turns = bytearray(n), list[int](), deque(map(iter, rankings))
    while left > 0 and turns:
        ranking = turns.popleft()
        document = next((one for one in map(int, ranking) if not taken[one]), None)
        if document is None:
            continue  # it is at its end
        turns.append(ranking)
        taken[document] = 1
        order.append(document)
        left -= 1 if lengths is None else lengths[document]
    priority[torch.tensor(order, dtype=torch.int64, device=others.device)] = -steps[: len(order)]
    return priority
