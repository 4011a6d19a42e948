"""Cluster unit rows by spherical k-means, deterministically and in bounded memory.

Used by the selectors that cluster, by the clusters of the report and by blocks of documents that are alike.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.selection.rows import Rows

CENTRE_PRODUCTS = 1 << 25  # entries of one block of similarities to centres


class Clusters(NamedTuple):
    """The clusters of n documents."""

    labels: Tensor  # (n,) int64, the cluster of each document
    closeness: Tensor  # (n,) float32, its cosine with the cluster's centre
    centres: Tensor  # (c, d) float32, unit length

    @property
    def sizes(self) -> Tensor:
        """Documents of each cluster, (c,) int64."""
        return torch.bincount(self.labels, minlength=len(self.centres))


def k_means(rows: Rows, n_clusters: int, n_iterations: int, generator: torch.Generator) -> Clusters:
    """Cluster unit rows (n, d) by cosine, starting from random documents."""
    centres = fit_centres(rows, n_clusters, n_iterations - 1, generator)
    return Clusters(*nearest_centres(rows, centres), centres)


def fit_centres(rows: Rows, n_clusters: int, n_moves: int, generator: torch.Generator) -> Tensor:
    """Move the centres of clusters, at first random documents, `n_moves` times to their mean direction: (c, d)."""
    start = torch.randperm(rows.n, generator=generator).to(rows.device)[:n_clusters]
    centres = rows.matrix[start]
    for _ in track("rounds of k-means", range(n_moves)):
        labels, _ = nearest_centres(rows, centres)
        order = labels.sort(stable=True).indices  # a fixed order: sums are the same on every run
        members = torch.split(order, torch.bincount(labels, minlength=n_clusters).tolist())
        moved = torch.nn.functional.normalize(torch.stack([rows.matrix[own].sum(0) for own in members]), dim=1)
        is_empty = torch.tensor([not len(own) for own in members], device=rows.device)
        centres = torch.where(is_empty[:, None], centres, moved)  # an empty cluster does not move
    return centres


def nearest_centres(rows: Rows, centres: Tensor) -> tuple[Tensor, Tensor]:
    """Return the nearest of the centres (c, d) of each row, (n,) int64, and its cosine with it, (n,) float32."""
    step = max(1, min(rows.block_rows, CENTRE_PRODUCTS // len(centres)))
    found = [(rows.matrix[part] @ centres.T).max(dim=1) for part in rows.slices(step)]
    return torch.cat([one.indices for one in found]), torch.cat([one.values for one in found])
