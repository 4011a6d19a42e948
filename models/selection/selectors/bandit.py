"""Select by a bandit over clusters, which looks at the quality of few documents: Quad."""

import heapq
import math
from collections.abc import Callable

import torch
from torch import Tensor

from fineweb_mask.models.selection.selectors.clusters import cluster
from fineweb_mask.models.selection.selectors.sampling import deviations
from fineweb_mask.models.selection.solvers.problem import Problem, Solution, finished


def solve_quad(problem: Problem) -> Solution:
    """Look at the quality of a few documents of the most promising cluster at a time, and take the good ones.

    Source: Quad, arXiv 2409.16986, whose score is the influence on a model's loss; here it is the quality. The
    inclusion is the quality in deviations, of documents that were not looked at far below.
    """
    objective, settings = problem.objective, problem.settings.quad
    found = cluster(problem.rows, settings, problem.generator)
    quality = deviations(objective.quality)
    order = torch.randperm(problem.rows.n, generator=problem.generator, device=quality.device)
    costs = None if objective.knapsack is None else objective.knapsack.tokens
    limit = objective.budget if objective.knapsack is None else objective.knapsack.limit
    seen = look_at_clusters(
        found.labels,
        order,
        lambda documents: quality[documents],
        limit,
        costs,
        exploration=settings.exploration,
        batch=settings.batch,
        least=settings.least,
    )
    lowest = float(quality.min()) - 1
    return finished(problem, torch.where(seen, quality, lowest))


def look_at_clusters(
    labels: Tensor,
    order: Tensor,
    score: Callable[[Tensor], Tensor],
    limit: float,
    costs: Tensor | None = None,
    *,
    exploration: float,
    batch: int,
    least: float = 0.0,
) -> Tensor:
    """Score documents, batch by batch, of the clusters that promise most, until enough of them are good.

    A cluster promises the mean score of those of its documents that were scored, plus
    exploration * sqrt(2 ln(all scored) / its scored).

    Parameters
    ----------
    labels
        The cluster of each document, (n,) int64.
    order
        The order in which each cluster's documents are scored, (n,) int64.
    score
        Returns the scores of some documents (b,): (b,). Only documents that are looked at are scored.
    limit
        Documents, or their `costs` (n,) together, that are to be good. A document is good that scores at least the
        mean of all scored, plus `least` of their standard deviations.
    exploration, batch, least
        As in `QuadSettings`.

    Returns
    -------
    Tensor
        The documents that were scored, (n,) bool.
    """
    order = order[labels[order].sort(stable=True).indices]
    sizes = torch.bincount(labels)
    waiting = {j: own for j, own in enumerate(torch.split(order, sizes.tolist())) if len(own)}
    seen = torch.zeros(len(labels), dtype=torch.bool, device=labels.device)
    values = torch.zeros(len(labels), device=labels.device)
    counts, sums = dict.fromkeys(waiting, 0), dict.fromkeys(waiting, 0.0)
    total, squares, scored, next_check = 0.0, 0.0, 0, 0

    def promise(j: int) -> float:
        if not counts[j]:
            return math.inf
        return sums[j] / counts[j] + exploration * math.sqrt(2 * math.log(max(2, scored)) / counts[j])

    heap = [(-math.inf, j) for j in sorted(waiting)]
    while heap:
        before, j = heapq.heappop(heap)
        if exploration and math.isfinite(before) and -before < (now := promise(j)) and heap and -heap[0][0] >= -before:
            heapq.heappush(heap, (-now, j))  # others were scored meanwhile, which raises its promise
            continue
        part, rest = waiting[j][:batch], waiting[j][batch:]
        found = score(part)
        seen[part], values[part] = True, found
        counts[j] += len(part)
        sums[j] += float(found.sum())
        total, squares, scored = total + float(found.sum()), squares + float(found.square().sum()), scored + len(part)
        waiting[j] = rest
        if len(rest):
            heapq.heappush(heap, (-promise(j), j))
        if scored >= next_check:
            next_check = scored + max(batch, scored // 50)
            mean = total / scored
            level = mean + least * math.sqrt(max(0.0, squares / scored - mean**2))
            good = seen & (values >= level)
            if all(counts.values()) and float(good.sum() if costs is None else costs[good].sum()) >= limit:
                break
    return seen
