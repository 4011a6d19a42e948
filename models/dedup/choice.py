"""Compare pairs of documents exactly by the words that they share, and choose which of similar ones are kept.

A document is dropped only for one that is kept and that it is itself compared with. So no chain of documents, each of
which resembles the next, drops one that resembles none of those that are left.
"""

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray


class Dropped(NamedTuple):
    """Documents that are dropped, ascending, and for each the kept one that it is most similar to."""

    documents: NDArray[np.uint64]  # (d,)
    kept: NDArray[np.uint64]  # (d,)
    similarity: NDArray[np.float32]  # (d,) NaN where it was not measured


def jaccard(ones: pa.ListArray, others: pa.ListArray) -> NDArray[np.float32]:
    """Return the Jaccard similarity of pairs of sets, (m,): the share of the elements of either that both have.

    Parameters
    ----------
    ones, others
        The sets of each pair, (m,) lists of uint64 below 2**63, ascending and without repeats. Two empty sets have a
        similarity of 0.

    Examples
    --------
    >>> sets = pa.array([[1, 2, 3], [2, 3, 4]], pa.list_(pa.uint64()))
    >>> jaccard(sets[:1], sets[1:]).tolist()
    [0.5]
    """
    from scipy.sparse import csr_array

    def rows(sets: pa.ListArray) -> csr_array:
        values = sets.flatten().to_numpy().astype(np.int64)  # numbers of columns
        ends = np.cumsum([0, *pc.list_value_length(sets).to_numpy()], dtype=np.int64)
        return csr_array((np.ones(len(values), dtype=np.float32), values, ends), shape=(len(sets), 2**63 - 1))

    left, right = rows(ones), rows(others)
    common = np.asarray(left.multiply(right).sum(axis=1), dtype=np.float32).ravel()
    either = np.diff(left.indptr) + np.diff(right.indptr) - common
    return np.asarray(common / np.maximum(either, 1), dtype=np.float32)


def choose(
    documents: NDArray[np.uint64], better: NDArray[np.uint64], similarity: NDArray[np.float32] | None = None
) -> Dropped:
    """Return which documents are dropped: those of a pair whose better one is kept.

    Parameters
    ----------
    documents, better
        Pairs of similar documents, (m,) both, of which `better` is to be kept rather; there is no circle of them.
    similarity
        Of each pair, (m,); of several kept ones, a dropped document has the most similar as its copy, then the one of
        the least number.

    Examples
    --------
    Of 1, 2 and 3, 2 is like 1, and 3 is like 2 alone: it stays.

    >>> choose(np.array([2, 3], dtype=np.uint64), np.array([1, 2], dtype=np.uint64)).documents.tolist()
    [2]
    """
    measured = np.full(len(documents), np.nan, dtype=np.float32) if similarity is None else similarity
    found, places = np.unique(np.concatenate([documents, better]), return_inverse=True)
    worse, best = np.split(places.ravel(), 2)
    order = np.argsort(best, kind="stable")
    followers, starts = worse[order], np.searchsorted(best[order], np.arange(len(found) + 1))
    undecided = np.bincount(worse, minlength=len(found))  # better ones of each document
    is_dropped = np.zeros(len(found), dtype=bool)
    ready = np.flatnonzero(undecided == 0)
    while len(ready):  # documents all of whose better ones are decided
        sizes = starts[ready + 1] - starts[ready]
        at = np.repeat(starts[ready] - np.cumsum(sizes) + sizes, sizes) + np.arange(sizes.sum())
        is_dropped[followers[at[np.repeat(~is_dropped[ready], sizes)]]] = True
        touched, times = np.unique(followers[at], return_counts=True)
        undecided[touched] -= times
        ready = touched[undecided[touched] == 0]
    is_for_kept = ~is_dropped[best]  # a document of such a pair is dropped
    pairs = np.flatnonzero(is_for_kept)
    order = np.lexsort((best[pairs], -np.nan_to_num(measured[pairs], nan=0.0), worse[pairs]))
    first = pairs[order][np.unique(worse[pairs][order], return_index=True)[1]]
    return Dropped(documents[first], better[first], measured[first])
