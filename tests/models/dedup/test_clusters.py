"""Clusters of pairs, compared with a plain search."""

import numpy as np
import pytest

from fineweb_mask.models.dedup.clusters import first_of_clusters


def expected(pairs):
    neighbours = {}
    for one, other in pairs:
        neighbours.setdefault(one, set()).add(other)
        neighbours.setdefault(other, set()).add(one)
    found = {}
    for start in sorted(neighbours):
        if start in found:
            continue
        waiting = [start]
        while waiting:
            document = waiting.pop()
            if document not in found:
                found[document] = start
                waiting += neighbours[document]
    return {document: kept for document, kept in found.items() if document != kept}


@pytest.mark.parametrize("seed", range(5))
def test_of_each_cluster_the_first_is_kept(seed):
    random = np.random.default_rng(seed)
    pairs = random.integers(0, 2**40, 300, dtype=np.uint64)[random.integers(0, 300, (200, 2))]
    dropped, kept = first_of_clusters(pairs[:, 0], pairs[:, 1])
    assert dict(zip(dropped.tolist(), kept.tolist(), strict=True)) == expected(pairs.tolist())
    assert dropped.tolist() == sorted(dropped.tolist())


def test_no_pairs_drop_nothing():
    none = np.empty(0, dtype=np.uint64)
    assert [len(found) for found in first_of_clusters(none, none)] == [0, 0]
