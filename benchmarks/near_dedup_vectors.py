"""Measure how near-duplicates are found by vectors, in more and fewer cells.

    python -m benchmarks.vectors web_mix.parquet web_mix.npz
    python -m benchmarks.near_dedup_vectors web_mix.npz

The truth is exact: the cosines of all pairs. Recall is the share of the pairs from the threshold on of which at least
one document is dropped; with one cell it is all of them. The time is that of the stages' own functions: the cells are
fitted on the vectors themselves, every vector gets its cell, and the documents of each cell are compared, on all cores.
"Repeated" is the share of what is left that has another one from the threshold on.
"""

import argparse
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.tables import show
from fineweb_mask.models.dedup.semantic import cluster_centres, clusters_of, first_similar

CELLS = (1, 10, 48, 200)


def near_duplicates(vectors: NDArray[np.float32], cells: int, threshold: float) -> NDArray[np.int64]:
    """Return the rows that are dropped."""
    own = clusters_of(vectors, cluster_centres(vectors, cells, seed=0))
    order = np.argsort(own, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(own[order])) + 1)
    return np.concatenate([members[first_similar(vectors[members], threshold).dropped] for members in parts])


def pairs_from(vectors: NDArray[np.float32], threshold: float) -> NDArray[np.int64]:
    """Return all pairs from a cosine on, (p, 2)."""
    found = []
    for start in range(0, len(vectors), 1_000):
        near = np.argwhere(vectors[start : start + 1_000] @ vectors.T >= threshold)
        near[:, 0] += start
        found.append(near[near[:, 0] < near[:, 1]])
    return np.concatenate(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, help="files of `benchmarks.vectors`")
    parser.add_argument("--thresholds", type=float, nargs="+", default=[0.95, 0.9])
    arguments = parser.parse_args()
    for path in arguments.files:
        vectors = np.load(path)["features"].astype(np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        for threshold in arguments.thresholds:
            pairs = pairs_from(vectors, threshold)
            rows = []
            for cells in CELLS:
                started = time.perf_counter()
                dropped = near_duplicates(vectors, cells, threshold)
                seconds = time.perf_counter() - started
                is_dropped = np.zeros(len(vectors), dtype=bool)
                is_dropped[dropped] = True
                left = ~is_dropped[pairs].any(axis=1)
                repeated = len(np.unique(pairs[left])) / max(1, (~is_dropped).sum())
                recall = 1 - left.mean() if len(pairs) else 1.0
                rows.append(
                    [
                        f"{cells}",
                        f"{len(dropped):,}",
                        f"{recall:.3f}",
                        f"{repeated:.2%}",
                        f"{len(vectors) / seconds:,.0f}",
                    ]
                )
            title = f"{path.stem}: {len(vectors):,} documents, {len(pairs):,} pairs from {threshold}"
            show(title, ["cells", "dropped", "recall", "repeated", "documents/s"], rows)


if __name__ == "__main__":
    main()
