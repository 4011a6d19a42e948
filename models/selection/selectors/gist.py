"""Select documents of high quality of which no two are near each other, at the distance that suits best: GIST."""

import torch
from torch import Tensor

from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.selection.rows import Rows
from fineweb_mask.models.selection.solvers.problem import Problem, Solution

BLOCK = 1024
"""Documents that are compared with those taken at a time."""
PAIRED = 20_000
"""Most documents that are all compared with each other to find the largest distance."""


def solve_gist(problem: Problem) -> Solution:
    """Take, for each of several distances, the best documents that far apart, and keep the best of these selections.

    The best is the one of the highest mean quality over the budget, from 0 to 1, plus `diversity_weight` times the
    least distance between two of its documents. Distances, sqrt(2 - 2 cosine), are the largest one, a half of that
    and so on, and 0. Where they cannot all be far apart, fewer documents are selected than the budget. Source: GIST,
    arXiv 2405.18754, which proves that with fine steps of the distance two thirds of the best possible are reached.
    The inclusion is the quality, with that of the documents that were not taken lowered.
    """
    rows, objective, settings = problem.rows, problem.objective, problem.settings.gist
    quality = objective.quality.double()
    worth = (quality - quality.min()) / (quality.max() - quality.min()).clamp(min=1e-30)
    order = quality.sort(descending=True, stable=True).indices
    limit = objective.budget if objective.knapsack is None else objective.knapsack.limit
    costs = torch.ones_like(worth) if objective.knapsack is None else objective.knapsack.tokens.double()
    tried, chosen = [0.0], list[Tensor]()
    if settings.diversity_weight:
        pair, widest = farthest_pair(rows) if rows.n <= PAIRED else far_pair(rows)
        tried += [widest / 2**step for step in range(settings.distances)]
        chosen += [pair] if float(costs[pair].sum()) <= limit else []
    chosen += [
        apart(rows, order, distance, costs, limit) for distance in track("distances", sorted(tried, reverse=True))
    ]
    best, reached = torch.empty(0, dtype=torch.int64), -torch.inf
    for taken in chosen:
        value = float(worth[taken] @ costs[taken]) / limit + settings.diversity_weight * least_distance(rows, taken)
        problem.history.record(len(problem.history.entries) + 1, value)
        if value > reached:
            best, reached = taken, value
    mask = torch.zeros(rows.n, dtype=torch.bool, device=rows.device)
    mask[best] = True
    problem.history.entries[:] = [(1, problem.history.entries[-1][1], objective.value_of(mask))]
    return Solution(mask, torch.where(mask, worth, worth - 1).float(), is_closed=True)


def apart(rows: Rows, order: Tensor, distance: float, costs: Tensor, limit: float) -> Tensor:
    """Take documents in an order (n,), each unless one nearer than `distance` is taken, while they fit: (k,) int64."""
    most = 1 - distance**2 / 2
    left, taken = limit, torch.empty(0, dtype=torch.int64, device=rows.device)
    vectors = torch.empty((0, rows.d), device=rows.device)
    for part in torch.split(order, BLOCK):
        block = rows.take(part)
        fits = (costs[part] <= left).cpu()
        if distance and len(taken):
            fits &= (torch.amax(block @ vectors.T, 1) <= most).cpu()
        near = (block @ block.T > most).cpu() if distance else None
        own = list[int]()
        for place in fits.nonzero()[:, 0].tolist():
            cost = float(costs[part[place]])
            if cost <= left and (near is None or not bool(near[place, own].any())):
                own.append(place)
                left -= cost
        taken = torch.cat([taken, part[own]])
        if distance:
            vectors = torch.cat([vectors, block[own]])
        if left < 1:
            break
    return taken


def far_pair(rows: Rows) -> tuple[Tensor, float]:
    """Return two documents at least half as far from each other as any, and their distance: the ends of two sweeps."""
    place = torch.zeros(1, dtype=torch.int64, device=rows.device)
    for _ in range(2):
        before, place = place, rows.dot(rows.take(place)[0]).argmin()[None]
    documents = torch.cat([before, place]).sort().values
    return documents, float((rows.take(documents[:1]) - rows.take(documents[1:])).norm())


def farthest_pair(rows: Rows) -> tuple[Tensor, float]:
    """Return the two documents of the least cosine, and their distance."""
    least, pair = torch.inf, (0, 0)
    for left in rows.slices(BLOCK):
        own = rows.block(left)
        for right in rows.slices(BLOCK):
            if right.start < left.start:
                continue
            cosines = own @ rows.block(right).T
            if float(cosines.min()) < least:
                least, place = float(cosines.min()), int(cosines.argmin())
                pair = (left.start + place // cosines.shape[1], right.start + place % cosines.shape[1])
    documents = torch.tensor(sorted(set(pair)), device=rows.device)
    return documents, (2 - 2 * min(1.0, least)) ** 0.5


def least_distance(rows: Rows, documents: Tensor) -> float:
    """Return the least distance between two of some documents (k,); 0 for fewer than two."""
    if len(documents) < 2:
        return 0.0
    nearest = -1.0
    for start in range(0, len(documents), BLOCK):
        block = rows.take(documents[start : start + BLOCK])
        for other in range(start, len(documents), BLOCK):
            cosines = block @ rows.take(documents[other : other + BLOCK]).T
            if other == start:
                cosines.fill_diagonal_(-1.0)
            nearest = max(nearest, float(cosines.max()))
    return float(max(0.0, 2 - 2 * nearest) ** 0.5)
