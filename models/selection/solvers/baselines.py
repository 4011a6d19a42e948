"""The selections that the learned ones are measured against, through the same `select`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.selection.solvers.mean_field import top
from fineweb_mask.models.selection.solvers.policy_gradient import gumbel_top_k
from fineweb_mask.models.selection.solvers.problem import Problem, Solution

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from fineweb_mask.models.selection.rows import Rows

CLUSTER_ROWS = 2048  # rows of one cluster compared at once
CENTRE_PRODUCTS = 1 << 25  # entries of one block of similarities to centres


def _finished(problem: Problem, inclusion: Tensor, mask: Tensor | None = None) -> Solution:
    mask = top(inclusion, problem.objective.budget) if mask is None else mask
    problem.history.record(1, problem.objective.value_of(mask))
    return Solution(mask, inclusion)


def solve_random(problem: Problem) -> Solution:
    """Select uniformly at random; the inclusion is the random key."""
    quality = problem.objective.quality
    return _finished(problem, torch.rand(len(quality), generator=problem.generator, device=quality.device))


def solve_top_quality(problem: Problem) -> Solution:
    """Select the highest quality: a threshold, ties by position."""
    return _finished(problem, problem.objective.quality)


def solve_quality_sampling(problem: Problem) -> Solution:
    """Sample without replacement in proportion to exp(quality / temperature).

    Quality is in standard deviations. Source: QuRating, arXiv 2402.09739. The inclusion is the logit.
    """
    objective = problem.objective
    deviation = objective.quality.double().std(correction=0).clamp(min=1e-30)
    centred = objective.quality.double() - objective.quality.mean(dtype=torch.float64)
    logits = (centred / (deviation * problem.settings.quality_sampling.temperature)).float()
    mask = gumbel_top_k(logits, objective.budget, 1, problem.generator)[0]
    return _finished(problem, logits, mask)


def solve_semdedup(problem: Problem) -> Solution:
    """Keep the least redundant documents of every k-means cluster.

    Within a cluster, documents are put in the order of `keep`; a document's redundancy is its largest cosine
    with one before it. Dropping what is closer than 1 - eps, with eps at the budget, keeps the K least
    redundant. Source: SemDeDup, arXiv 2303.09540. The inclusion is one minus the redundancy.
    """
    objective, settings, rows = problem.objective, problem.settings.semdedup, problem.rows
    n_clusters = min(rows.n, settings.n_clusters or max(1, round(rows.n**0.5)))
    labels, closeness = k_means(rows, n_clusters, settings.n_iterations, problem.generator)
    rank = {"quality": objective.quality, "hard": -closeness, "easy": closeness}[settings.keep]
    redundancy = torch.zeros(rows.n, device=rows.device)
    order = rank.sort(descending=True, stable=True).indices
    order = order[labels[order].sort(stable=True).indices]  # by cluster, within it the ones to keep first
    sizes: list[int] = torch.bincount(labels, minlength=n_clusters).tolist()
    for members in track("clusters", torch.split(order, sizes)):
        for start in range(0, len(members), CLUSTER_ROWS):
            part = members[start : start + CLUSTER_ROWS]
            cosines = rows.take(part) @ rows.take(members[: start + len(part)]).T
            earlier = cosines.tril(diagonal=start - 1)  # those before it; 0 stands for none
            redundancy[part] = earlier.amax(1)
    return _finished(problem, 1 - redundancy)


def k_means(
    rows: Rows,
    n_clusters: int,
    n_iterations: int,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Cluster unit rows by cosine (spherical k-means), starting from random documents.

    Returns
    -------
    Tensor
        (n,) int64 cluster of each document.
    Tensor
        (n,) float32 cosine with its centre.
    """
    start = torch.randperm(rows.n, generator=generator, device=rows.device)[:n_clusters]
    centres = rows.take(start)
    for iteration in track("rounds of k-means", range(n_iterations)):
        closeness, labels = map(torch.cat, zip(*_nearest_centre(rows, centres), strict=True))
        if iteration == n_iterations - 1:
            break
        order = labels.sort(stable=True).indices  # summing in this order is the same on every run
        sizes = torch.bincount(labels, minlength=n_clusters)
        sums = torch.stack([rows.take(members).sum(0) for members in torch.split(order, sizes.tolist())])
        moved = torch.nn.functional.normalize(sums, dim=1)
        centres = torch.where(sizes[:, None] > 0, moved, centres)  # an empty cluster stays where it is
    return labels, closeness


def _nearest_centre(rows: Rows, centres: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    step = max(1, min(rows.block_rows, CENTRE_PRODUCTS // len(centres)))
    for part in rows.slices(step):
        closeness, labels = (rows.block(part) @ centres.T).max(dim=1)
        yield closeness, labels
