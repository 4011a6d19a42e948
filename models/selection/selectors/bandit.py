"""Select by a bandit over clusters, which looks at few documents: Quad."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fineweb_mask.models.runtime.progress import track_by_size
from fineweb_mask.models.selection.selectors.clusters import cluster
from fineweb_mask.models.selection.solvers.problem import Problem, Solution, finished

EXPLORATION = 0.1
"""Weight of clusters that were looked at less, in standard deviations of the score: large takes them in turn."""
BATCH = 32
"""Documents of a cluster that are scored together."""


def solve_quad(problem: Problem, *, n_clusters: int | None = None, batch: int = BATCH) -> Solution:
    """Score a few documents of the most promising cluster at a time, and select the best of all that were scored.

    The score is that of `also.score`, where it is given: a model that is too expensive to score all documents. Else it
    is the quality. Source: Quad, arXiv 2409.16986, whose score is the influence on a model's loss. The inclusion is the
    score, and that of documents that were not scored is below all others.
    """
    objective, also = problem.objective, problem.also
    found = cluster(problem.rows, problem.generator, n_clusters)
    order = torch.randperm(problem.rows.n, generator=problem.generator, device=problem.rows.device)

    def score(documents: Tensor) -> Tensor:
        if also.score is None:
            return objective.quality[documents]
        return torch.as_tensor(also.score(documents.cpu().numpy()), dtype=torch.float32, device=documents.device)

    costs = None if objective.knapsack is None else objective.knapsack.tokens
    limit = objective.budget if objective.knapsack is None else objective.knapsack.limit
    looked = look_at_clusters(found.labels, order, score, limit, costs, batch=batch)
    lowest = float(looked.scores[looked.seen].min()) - 1
    solution = finished(problem, torch.where(looked.seen, looked.scores, lowest))
    solution.scored = int(looked.seen.sum())
    return solution


class Looked(NamedTuple):
    """What a bandit has seen of n documents."""

    seen: Tensor  # (n,) bool, those that were scored
    scores: Tensor  # (n,) float32, 0 for the others


def look_at_clusters(
    labels: Tensor,
    order: Tensor,
    score: Callable[[Tensor], Tensor],
    limit: float,
    costs: Tensor | None,
    *,
    exploration: float = EXPLORATION,
    batch: int = BATCH,
) -> Looked:
    """Score documents, batch by batch, of the clusters that promise most, until enough of them are good.

    First comes one batch of every cluster. A cluster then promises the mean of its scores, plus
    exploration * sqrt(2 ln(all scored) / its scored) in standard deviations of those first scores. A document is good
    that scores at least the mean of all scores.

    Parameters
    ----------
    labels
        The cluster of each document, (n,) int64.
    order
        The order in which each cluster's documents are scored, (n,) int64.
    score
        Returns the scores of some documents (b,): (b,). No document is scored twice.
    limit
        Documents, or their `costs` together, that are to be good.
    costs
        Tokens of each document, (n,); None: documents count.
    exploration
        Weight of clusters that were looked at less; 0 is greedy.
    batch
        Documents of a cluster that are scored together.
    """
    sizes = torch.bincount(labels)
    waiting = list(torch.split(order[labels[order].sort(stable=True).indices], sizes.tolist()))
    seen = torch.zeros(len(labels), dtype=torch.bool, device=labels.device)
    scores = torch.zeros(len(labels), device=labels.device)
    left, scored, totals = sizes.cpu().numpy(), np.zeros(len(sizes)), np.zeros(len(sizes))

    def look(j: int) -> int:
        part, waiting[j] = waiting[j][:batch], waiting[j][batch:]
        found = score(part)
        seen[part], scores[part] = True, found
        totals[j] += float(found.double().sum())
        scored[j] += len(part)
        left[j] -= len(part)
        return len(part)

    def is_enough() -> bool:
        good = seen & (scores >= scores[seen].double().mean())
        return float(good.sum() if costs is None else costs[good].sum()) >= limit

    def rounds() -> Iterator[int]:
        """Score one batch after the other, and yield how many documents each has."""
        yield from (look(j) for j in range(len(left)) if left[j])
        width = exploration * float(scores[seen].double().std(correction=0))
        next_check = 0.0
        while left.any():
            if scored.sum() >= next_check:
                if is_enough():
                    break
                next_check = scored.sum() + max(batch, scored.sum() // 50)
            used = scored.clip(min=1)
            promise = totals / used + width * np.sqrt(2 * np.log(max(2, scored.sum())) / used)
            yield look(int(np.where(left > 0, promise, -np.inf).argmax()))

    for _ in track_by_size("documents scored", rounds(), len(labels), int):
        pass
    return Looked(seen, scores)
