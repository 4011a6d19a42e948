"""Find documents whose vectors are nearly those of an earlier one, as SemDeDup does, within k-means clusters.

Source: Abbas et al. 2023, "SemDeDup: Data-efficient learning at web-scale through semantic deduplication"
(arXiv 2303.09540). There a document is dropped for any similar one of its cluster; here only for one that is kept, so
that no chain of documents drops one that resembles none of those that are left.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.models.selection.k_means import fit_centres, nearest_centres
from fineweb_mask.models.selection.rows import Rows

MOVES = 10
"""Rounds of k-means."""
BLOCK = 1024
"""Documents that are compared with all earlier ones at a time."""


class Similar(NamedTuple):
    """Documents that are dropped, and the earlier document for which each is, (d,) int64 both."""

    dropped: NDArray[np.int64]
    kept: NDArray[np.int64]


def cluster_centres(vectors: NDArray[np.float32], clusters: int, seed: int = 0) -> NDArray[np.float32]:
    """Return the centres of so many clusters of unit vectors (n, d), by spherical k-means: (c, d)."""
    generator = torch.Generator().manual_seed(seed)
    rows = Rows(torch.from_numpy(vectors))
    centres: NDArray[np.float32] = fit_centres(rows, min(clusters, len(vectors)), MOVES, generator).numpy()
    return centres


def clusters_of(vectors: NDArray[np.float32], centres: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the cluster of each unit vector (n, d), that of the nearest centre: (n,)."""
    found: NDArray[np.int64] = nearest_centres(Rows(torch.from_numpy(vectors)), torch.from_numpy(centres)).numpy()
    return found


def first_similar(vectors: NDArray[np.float32], threshold: float) -> Similar:
    """Return which of unit vectors (n, d), in the order in which they are to be kept, have a kept one before them.

    The kept one is the first with a cosine of at least the threshold.

    Examples
    --------
    >>> angles = np.deg2rad([0, 10, 20, 90]).astype(np.float32)
    >>> dropped, kept = first_similar(np.stack([np.cos(angles), np.sin(angles)], axis=1), 0.98)
    >>> dropped.tolist(), kept.tolist()
    ([1], [0])
    """
    rows = torch.from_numpy(vectors)
    kept = torch.empty(0, dtype=torch.int64)
    dropped, copies = list[int](), list[int]()
    for start in range(0, len(rows), BLOCK):
        raise_if_stopped()
        block = rows[start : start + BLOCK]
        first = torch.full((len(block),), -1)
        if len(kept):
            is_near = block @ rows[kept].T >= threshold
            found = is_near.any(dim=1)
            first[found] = kept[is_near[found].to(torch.uint8).argmax(dim=1)]
        within = (block @ block.T >= threshold).tril(-1)
        for place in within.any(dim=1).nonzero().flatten().tolist():  # in order: each depends on those before it
            if first[place] < 0 and len(near := (within[place] & (first < 0))[:place].nonzero()):
                first[place] = start + near[0, 0]
        is_dropped = first >= 0
        dropped += (is_dropped.nonzero().flatten() + start).tolist()
        copies += first[is_dropped].tolist()
        kept = torch.cat([kept, (~is_dropped).nonzero().flatten() + start])
    return Similar(np.array(dropped, dtype=np.int64), np.array(copies, dtype=np.int64))
