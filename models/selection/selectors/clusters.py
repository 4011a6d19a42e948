"""Select by clusters of k-means: SemDeDup, D4 and k-means-quality sampling."""

from dataclasses import replace

import torch
from torch import Tensor

from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.selection.k_means import Clusters, k_means
from fineweb_mask.models.selection.rows import Rows
from fineweb_mask.models.selection.selectors.sampling import deviations
from fineweb_mask.models.selection.solvers.policy_gradient import gumbel_keys
from fineweb_mask.models.selection.solvers.problem import Problem, Solution, finished
from fineweb_mask.models.settings.selectors.options import Keep

ITERATIONS = 10
"""Of k-means: the clusters only divide documents, so that they need not be exact."""
DEDUP_RATIO = 0.75
"""Share of the documents that D4 keeps when it deduplicates: its authors' choice, arXiv 2308.12284."""
CLUSTER_ROWS = 2048
"""Rows of one cluster that are compared at once."""
BELOW_ALL = -1e9
"""Priority of documents of clusters without a budget."""


def solve_semdedup(problem: Problem, *, n_clusters: int | None = None) -> Solution:
    """Keep the least redundant documents of every k-means cluster.

    Within a cluster, documents are sorted by `keep`. The redundancy of a document is its largest cosine with a
    document before it. SemDeDup (arXiv 2303.09540) drops documents of a redundancy above 1 - eps: so does this with
    `eps`; otherwise eps is where the budget is full. The inclusion is one minus the redundancy.
    """
    settings = problem.settings.semdedup
    redundancy = redundancies(problem, cluster(problem.rows, problem.generator, n_clusters), settings.keep)
    inclusion = 1 - redundancy
    if settings.eps is None:
        return finished(problem, inclusion)
    is_dropped = inclusion < settings.eps
    mask = problem.objective.top(torch.where(is_dropped, BELOW_ALL, inclusion)) & ~is_dropped
    return replace(finished(problem, inclusion, mask), is_closed=True)


def solve_d4(problem: Problem, *, dedup_ratio: float = DEDUP_RATIO, n_clusters: int | None = None) -> Solution:
    """Deduplicate as SemDeDup does, cluster what is left again, and select the documents farthest from their centre.

    Of two documents in a cluster that are alike, the one farther from its centre stays, until a share of `dedup_ratio`
    is left. If the budget is larger than that, the least redundant of the dropped documents fill it. Source: D4,
    arXiv 2308.12284, which takes the distance from the centre from Sorscher et al. 2022 (SSL prototypes, arXiv
    2206.14486). The inclusion is one minus the cosine; that of a dropped document is below 0.
    """
    rows = problem.rows
    redundancy = redundancies(problem, cluster(rows, problem.generator, n_clusters), "hard")
    order = redundancy.sort(stable=True).indices
    kept = order[: max(1, round(dedup_ratio * rows.n))].sort().values
    inclusion = -1 - redundancy
    inclusion[kept] = 1 - cluster(rows.only(kept), problem.generator, n_clusters).closeness
    return finished(problem, inclusion)


def solve_kmq(problem: Problem, *, n_clusters: int | None = None) -> Solution:
    """Sample from every cluster in proportion to exp(quality), in standard deviations, without replacement.

    Clusters give in proportion to their size, as in the paper; what a small one cannot give, the others share. Source:
    Diversify and Conquer, arXiv 2409.11378, which draws with replacement, and its published code
    (for-ai/iterative-data-selection), which does not and takes scores as they are; here they are standardised. The
    inclusion is minus the rank in the cluster over its budget.
    """
    found = cluster(problem.rows, problem.generator, n_clusters)
    keys = gumbel_keys(deviations(problem.objective.quality), 1, problem.generator)[0]
    budget, sizes = problem.objective.budget, found.sizes
    wanted = sizes.double() / len(keys) * budget
    return finished(problem, priority_by_budget(found.labels, keys, fitted_budgets(wanted, sizes, budget)))


def cluster(rows: Rows, generator: torch.Generator, n_clusters: int | None = None) -> Clusters:
    """Cluster rows (n, d) by k-means, into so many clusters, or else as many as the square root of n."""
    return k_means(rows, min(rows.n, n_clusters or max(1, round(rows.n**0.5))), ITERATIONS, generator)


def redundancies(problem: Problem, found: Clusters, keep: Keep) -> Tensor:
    """Return each document's largest cosine with one before it in its cluster, (n,) float32; 0 for the first one."""
    rows = problem.rows
    rank = {"quality": problem.objective.quality, "hard": -found.closeness, "easy": found.closeness}[keep]
    redundancy = torch.zeros(rows.n, device=rows.device)
    order = rank.sort(descending=True, stable=True).indices
    order = order[found.labels[order].sort(stable=True).indices]  # by cluster, in each the documents to keep first
    for members in track("clusters", torch.split(order, found.sizes.tolist())):
        for start in range(0, len(members), CLUSTER_ROWS):
            part = members[start : start + CLUSTER_ROWS]
            cosines = rows.take(part) @ rows.take(members[: start + len(part)]).T
            earlier = cosines.tril(diagonal=start - 1)  # with documents before it; 0 if there is none
            redundancy[part] = earlier.amax(1)
    return redundancy


def fitted_budgets(wanted: Tensor, sizes: Tensor, total: int) -> Tensor:
    """Return whole budgets (c,) int64, at most the sizes (c,), of `total` together, as near to `wanted` as possible.

    Nearest in the sum of squares: each is what is wanted plus one number for all, between 0 and the cluster's size.

    >>> fitted_budgets(torch.tensor([5.0, 5.0, 0.0]), torch.tensor([2, 9, 9]), 10).tolist()
    [2, 7, 1]
    """
    most = sizes.double()
    low, high = -float(wanted.max()), float(most.max())
    for _ in range(100):
        middle = (low + high) / 2
        if float((wanted + middle).clamp(min=0).minimum(most).sum()) < total:
            low = middle
        else:
            high = middle
    exact = (wanted + high).clamp(min=0).minimum(most)
    budgets = (exact + 1e-6).floor().long()
    rest = total - int(budgets.sum())
    remainder = torch.where(budgets < sizes, exact - budgets, -torch.inf)
    budgets[remainder.sort(descending=True, stable=True).indices[:rest]] += 1
    return budgets


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
