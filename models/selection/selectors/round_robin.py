"""Take documents by several rankings in turn."""

from torch import Tensor, empty, float64

from fineweb_mask.models.selection.solvers.problem import Problem


def in_turn(values: Tensor, problem: Problem) -> Tensor:
    """Return minus the number of documents taken before each, (n,) float64: rankings take their best not taken.

    `values` are (rankings, n), larger is better, ties by position. When the budget is full, the others follow by their
    best rank.
    """
    n = values.shape[1]
    orders = values.sort(dim=1, descending=True, stable=True).indices
    ranks = empty(values.shape, dtype=float64, device=values.device)
    places = -empty(n, dtype=float64, device=values.device).fill_(1).cumsum(0)
    for order, rank in zip(orders, ranks, strict=True):
        rank[order] = places
    priority = ranks.amax(0) - n
    lists, taken, at = orders.tolist(), bytearray(n), [0] * len(orders)
    lengths = None if problem.objective.knapsack is None else problem.objective.knapsack.tokens.tolist()
    left = problem.objective.budget if problem.objective.knapsack is None else problem.objective.knapsack.limit
    count = 0
    while left > 0 and count < n:
        turn = count % len(lists)
        own, place = lists[turn], at[turn]
        while taken[own[place]]:
            place += 1
        document = own[place]
        taken[document], at[turn] = 1, place + 1
        priority[document] = -float(count)
        left -= 1 if lengths is None else lengths[document]
        count += 1
    return priority
