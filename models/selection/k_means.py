"""Cluster unit rows by spherical k-means, deterministically and in bounded memory.

Used by the selectors that cluster, by `cluster_coverage`, by the clusters of the report and by approximate lists of
neighbours.
"""

import math
from collections.abc import Iterator
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
    closeness, labels = map(torch.cat, zip(*_nearest_centre(rows, centres), strict=True))
    return Clusters(labels, closeness, centres)


def fit_centres(rows: Rows, n_clusters: int, n_moves: int, generator: torch.Generator) -> Tensor:
    """Move the centres of clusters, at first random documents, `n_moves` times to their mean direction: (c, d)."""
    start = torch.randperm(rows.n, generator=generator).to(rows.device)[:n_clusters]
    centres = rows.take(start)
    for _ in track("rounds of k-means", range(n_moves)):
        labels = nearest_centres(rows, centres)
        members = _by_label(labels, n_clusters)
        moved = torch.nn.functional.normalize(torch.stack([rows.take(own).sum(0) for own in members]), dim=1)
        is_empty = torch.tensor([not len(own) for own in members], device=rows.device)
        centres = torch.where(is_empty[:, None], centres, moved)  # an empty cluster does not move
    return centres


def nearest_centres(rows: Rows, centres: Tensor) -> Tensor:
    """Return the nearest of the centres (c, d) of each row, by cosine: (n,) int64."""
    return torch.cat([labels for _, labels in _nearest_centre(rows, centres)])


class Tree(NamedTuple):
    """Centres of clusters that are parts of groups, so that few of them are compared with each row."""

    centres: Tensor  # (c, d) float32, unit length or 0
    groups: Tensor  # (c,) int64, ascending: the group of each

    @classmethod
    def fit(cls, rows: Rows, n_clusters: int, n_moves: int, generator: torch.Generator) -> "Tree":
        """Cluster unit rows into sqrt(c) groups, and each into as many parts as it has a share of the rows."""
        n_groups = math.isqrt(n_clusters)
        labels = nearest_centres(rows, fit_centres(rows, n_groups, n_moves, generator))
        found, groups = list[Tensor](), list[Tensor]()
        for members in _by_label(labels, n_groups):
            if len(members):
                parts = min(len(members), max(1, round(n_clusters * len(members) / rows.n)))
                found.append(fit_centres(rows.only(members), parts, n_moves, generator))
                groups.append(torch.full((parts,), len(groups), device=rows.device))
        return cls(torch.cat(found), torch.cat(groups))

    def nearest(self, rows: Rows) -> Tensor:
        """Return the nearest centre of each row in the group of the nearest mean of centres, by cosine: (n,) int64."""
        sizes = torch.bincount(self.groups).tolist()
        parts = torch.split(self.centres, sizes)
        means = torch.nn.functional.normalize(torch.stack([part.sum(0) for part in parts]), dim=1)
        found = torch.empty(rows.n, dtype=torch.int64, device=rows.device)
        labels, first = nearest_centres(rows, means), 0
        for part, members in zip(parts, _by_label(labels, len(parts)), strict=True):
            for some in torch.split(members, rows.block_rows):
                found[some] = first + (rows.take(some) @ part.T).argmax(1)
            first += len(part)
        return found


def _by_label(labels: Tensor, count: int) -> tuple[Tensor, ...]:
    """Return the places of every label, ascending."""
    order = labels.sort(stable=True).indices  # a fixed order: sums are the same on every run
    return torch.split(order, torch.bincount(labels, minlength=count).tolist())


def _nearest_centre(rows: Rows, centres: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    step = max(1, min(rows.block_rows, CENTRE_PRODUCTS // len(centres)))
    for part in rows.slices(step):
        closeness, labels = (rows.block(part) @ centres.T).max(dim=1)
        yield closeness, labels
