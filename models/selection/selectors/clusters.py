"""Select by clusters of k-means: SemDeDup, D4, k-means-quality sampling, and Quad, which looks at few documents."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.selection.k_means import Clusters, k_means
from fineweb_mask.models.selection.rows import Rows
from fineweb_mask.models.selection.selectors.sampling import deviations
from fineweb_mask.models.selection.shares import whole
from fineweb_mask.models.selection.solvers.policy_gradient import gumbel_keys
from fineweb_mask.models.selection.solvers.problem import Problem, Solution, in_order

ITERATIONS = 10
"""Of k-means: the clusters only divide documents, so that they need not be exact."""
DEDUP_RATIO = 0.75
"""Share of the documents that D4 keeps when it deduplicates: its authors' choice, arXiv 2308.12284."""
CLUSTER_ROWS = 2048
"""Rows of one cluster that are compared at once."""
BELOW_ALL = -1e9
"""Priority of documents of clusters without a budget."""
EXPLORATION = 0.1
"""Weight of clusters that were looked at less, in standard deviations of the score: large takes them in turn."""
BATCH = 32
"""Documents of a cluster that are looked at together."""


def solve_semdedup(problem: Problem, *, n_clusters: int | None = None) -> Solution:
    """Keep the least redundant documents of every k-means cluster.

    Within a cluster, documents are sorted by quality. The redundancy of a document is its largest cosine with a
    document before it. SemDeDup (arXiv 2303.09540) drops documents of a redundancy above 1 - eps: here eps is where the
    budget is full. The inclusion is one minus the redundancy.
    """
    found = cluster(problem.rows, problem.generator, n_clusters)
    return in_order(problem, 1 - redundancies(problem, found, problem.quality))


def solve_d4(problem: Problem, *, dedup_ratio: float = DEDUP_RATIO, n_clusters: int | None = None) -> Solution:
    """Deduplicate as SemDeDup does, cluster what is left again, and select the documents farthest from their centre.

    Of two documents in a cluster that are alike, the one farther from its centre stays, until a share of `dedup_ratio`
    is left. If the budget is larger than that, the least redundant of the dropped documents fill it. Source: D4,
    arXiv 2308.12284, which takes the distance from the centre from Sorscher et al. 2022 (SSL prototypes, arXiv
    2206.14486). The inclusion is one minus the cosine; that of a dropped document is below 0.
    """
    rows = problem.rows
    found = cluster(rows, problem.generator, n_clusters)
    redundancy = redundancies(problem, found, -found.closeness)
    order = redundancy.sort(stable=True).indices
    kept = order[: max(1, round(dedup_ratio * rows.n))].sort().values
    inclusion = -1 - redundancy
    inclusion[kept] = 1 - cluster(rows.only(kept), problem.generator, n_clusters).closeness
    return in_order(problem, inclusion)


def solve_kmq(problem: Problem, *, n_clusters: int | None = None) -> Solution:
    """Sample from every cluster in proportion to exp(quality), in standard deviations, without replacement.

    Clusters give in proportion to their size, as in the paper. Source: Diversify and Conquer, arXiv 2409.11378, which
    draws with replacement, and its published code (for-ai/iterative-data-selection), which does not and takes scores as
    they are; here they are standardised. The inclusion is minus the rank in the cluster over its budget.
    """
    found = cluster(problem.rows, problem.generator, n_clusters)
    keys = gumbel_keys(deviations(problem.quality), 1, problem.generator)[0]
    budget = max(1, round(problem.objective.budget.size))
    budgets = torch.from_numpy(whole(found.sizes.cpu().numpy() / len(keys) * budget, budget)).to(keys.device)
    return in_order(problem, priority_by_budget(found.labels, keys, budgets))


def cluster(rows: Rows, generator: torch.Generator, n_clusters: int | None = None) -> Clusters:
    """Cluster rows (n, d) by k-means, into so many clusters, or else as many as the square root of n."""
    return k_means(rows, min(rows.n, n_clusters or max(1, round(rows.n**0.5))), ITERATIONS, generator)


def redundancies(problem: Problem, found: Clusters, rank: Tensor) -> Tensor:
    """Return each document's largest cosine with one of a higher rank in its cluster, (n,) float32; 0 for the first."""
    rows = problem.rows
    redundancy = torch.zeros(rows.n, device=rows.device)
    order = rank.sort(descending=True, stable=True).indices
    order = order[found.labels[order].sort(stable=True).indices]  # by cluster, in each the documents to keep first
    for members in track("clusters", torch.split(order, found.sizes.tolist())):
        for start in range(0, len(members), CLUSTER_ROWS):
            part = members[start : start + CLUSTER_ROWS]
            cosines = rows.matrix[part] @ rows.matrix[members[: start + len(part)]].T
            earlier = cosines.tril(diagonal=start - 1)  # with documents before it; 0 if there is none
            redundancy[part] = earlier.amax(1)
    return redundancy


def priority_by_budget(labels: Tensor, values: Tensor, budgets: Tensor) -> Tensor:
    """Return priorities (n,) by which clusters fill up evenly, each in the order of the values (n,), largest first.

    The first documents, as many as the budgets (c,) together, are then as many of each cluster as its budget.
    """
    order = values.sort(descending=True, stable=True).indices
    order = order[labels[order].sort(stable=True).indices]
    sizes = torch.bincount(labels, minlength=len(budgets))
    places = torch.arange(len(labels), device=labels.device) - (sizes.cumsum(0) - sizes)[labels[order]]
    places = places.double()
    budget = budgets[labels[order]]
    priority = torch.empty(len(labels), dtype=torch.float64, device=labels.device)
    priority[order] = torch.where(budget > 0, -(places + 1) / budget.clamp(min=1), BELOW_ALL - places)
    return priority


def solve_quad(problem: Problem, *, n_clusters: int | None = None, batch: int = BATCH) -> Solution:
    """Look at a few documents of the most promising cluster at a time, and select the best of all that were looked at.

    Source: Quad, arXiv 2409.16986, whose score is the influence on a model's loss; here it is the quality, which all
    documents have. The inclusion is the quality, and that of documents that were not looked at is below all others.
    """
    quality, budget = problem.quality, problem.objective.budget
    found = cluster(problem.rows, problem.generator, n_clusters)
    order = torch.randperm(problem.rows.n, generator=problem.generator).to(problem.rows.device)
    members = torch.split(order[found.labels[order].sort(stable=True).indices], found.sizes.tolist())
    seen = look_at_clusters(members, quality, budget.costs, budget.limit, batch=batch)
    return in_order(problem, torch.where(seen, quality, quality.min() - 1))


def look_at_clusters(
    members: Sequence[Tensor],
    quality: Tensor,
    costs: Tensor,
    limit: float,
    *,
    exploration: float = EXPLORATION,
    batch: int = BATCH,
) -> Tensor:
    """Look at documents, batch by batch, of the clusters that promise most, until enough are good: which, (n,) bool.

    First comes one batch of every cluster. A cluster then promises the mean quality of its documents seen, plus
    exploration * sqrt(2 ln(all seen) / its seen) in standard deviations of the quality of those first ones. A document
    is good that has at least the mean quality of all seen.

    Parameters
    ----------
    members
        The documents of each cluster, in the order in which they are looked at.
    quality, costs
        Of each document, (n,).
    limit
        What those that are good are to cost together.
    exploration
        Weight of clusters that were looked at less; 0 is greedy.
    batch
        Documents of a cluster that are looked at together.
    """
    waiting = [list(torch.split(own, batch))[::-1] for own in members if len(own)]
    counts, totals = np.zeros(len(waiting)), np.zeros(len(waiting))
    seen = torch.zeros_like(costs, dtype=torch.bool)
    width, next_check = 0.0, len(waiting)
    for step in track("batches looked at", range(sum(map(len, waiting)))):
        chosen = step
        if step >= len(waiting):
            if step == next_check:
                good = seen & (quality >= quality[seen].double().mean())
                if float(costs[good].sum()) >= limit:
                    break
                next_check += max(1, step // 50)
            if step == len(waiting):
                width = exploration * float(quality[seen].double().std(correction=0))
            promise = totals / counts + width * np.sqrt(2 * np.log(max(2, counts.sum())) / counts)
            chosen = int(np.where([bool(batches) for batches in waiting], promise, -np.inf).argmax())
        part = waiting[chosen].pop()
        seen[part] = True
        totals[chosen] += float(quality[part].double().sum())
        counts[chosen] += len(part)
    return seen
