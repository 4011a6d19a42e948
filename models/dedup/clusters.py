"""Join pairs of near-duplicates into clusters, of which the first document is kept."""

import numpy as np
from numpy.typing import NDArray


def first_of_clusters(
    documents: NDArray[np.uint64], others: NDArray[np.uint64]
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return the documents that are dropped, ascending, and the first document of the cluster of each, (d,) both.

    Parameters
    ----------
    documents, others
        Pairs of near-duplicates, (m,): numbers in the order in which documents are to be kept. Documents that pairs
        connect, through others, too, are one cluster.

    Examples
    --------
    >>> dropped, kept = first_of_clusters(np.array([7, 9, 5], dtype=np.uint64), np.array([5, 7, 2], dtype=np.uint64))
    >>> dropped.tolist(), kept.tolist()
    ([5, 7, 9], [2, 2, 2])
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    found, places = np.unique(np.concatenate([documents, others]), return_inverse=True)
    left, right = np.split(places.ravel(), 2)
    graph = coo_array((np.ones(len(left), dtype=bool), (left, right)), shape=(len(found), len(found)))
    count, clusters = connected_components(graph, directed=False)
    first = np.full(count, len(found))
    np.minimum.at(first, clusters, np.arange(len(found)))
    kept = found[first[clusters]] if len(found) else found
    return found[kept != found], kept[kept != found]
