"""Solve by the baselines that the learned selections are compared with, through the same `select`."""

import torch
from torch import Tensor

from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.selection.k_means import k_means
from fineweb_mask.models.selection.solvers.policy_gradient import gumbel_keys
from fineweb_mask.models.selection.solvers.problem import Problem, Solution

CLUSTER_ROWS = 2048  # rows of one cluster compared at once


def _finished(problem: Problem, inclusion: Tensor, mask: Tensor | None = None) -> Solution:
    mask = problem.objective.top(inclusion) if mask is None else mask
    problem.history.record(1, problem.objective.value_of(mask))
    return Solution(mask, inclusion)


def solve_random(problem: Problem) -> Solution:
    """Select uniformly at random; the inclusion is the random key."""
    quality = problem.objective.quality
    return _finished(problem, torch.rand(len(quality), generator=problem.generator, device=quality.device))


def solve_top_quality(problem: Problem) -> Solution:
    """Select the documents of highest quality, ties by position."""
    return _finished(problem, problem.objective.quality)


def solve_quality_sampling(problem: Problem) -> Solution:
    """Sample without replacement in proportion to exp(quality / temperature).

    Quality is in standard deviations. Source: QuRating, arXiv 2402.09739. The inclusion is the logit.
    """
    objective = problem.objective
    deviation = objective.quality.double().std(correction=0).clamp(min=1e-30)
    centred = objective.quality.double() - objective.quality.mean(dtype=torch.float64)
    logits = (centred / (deviation * problem.settings.quality_sampling.temperature)).float()
    mask = objective.top(gumbel_keys(logits, 1, problem.generator)[0])
    return _finished(problem, logits, mask)


def solve_semdedup(problem: Problem) -> Solution:
    """Keep the least redundant documents of every k-means cluster.

    Within a cluster, documents are sorted by `keep`. The redundancy of a document is its largest cosine with a
    document before it. SemDeDup (arXiv 2303.09540) drops documents of a redundancy above 1 - eps; here eps is where K
    remain. The inclusion is one minus the redundancy.
    """
    objective, settings, rows = problem.objective, problem.settings.semdedup, problem.rows
    n_clusters = min(rows.n, settings.n_clusters or max(1, round(rows.n**0.5)))
    labels, closeness = k_means(rows, n_clusters, settings.n_iterations, problem.generator)
    rank = {"quality": objective.quality, "hard": -closeness, "easy": closeness}[settings.keep]
    redundancy = torch.zeros(rows.n, device=rows.device)
    order = rank.sort(descending=True, stable=True).indices
    order = order[labels[order].sort(stable=True).indices]  # by cluster, in each the documents to keep first
    sizes: list[int] = torch.bincount(labels, minlength=n_clusters).tolist()
    for members in track("clusters", torch.split(order, sizes)):
        for start in range(0, len(members), CLUSTER_ROWS):
            part = members[start : start + CLUSTER_ROWS]
            cosines = rows.take(part) @ rows.take(members[: start + len(part)]).T
            earlier = cosines.tril(diagonal=start - 1)  # with documents before it; 0 if there is none
            redundancy[part] = earlier.amax(1)
    return _finished(problem, 1 - redundancy)
