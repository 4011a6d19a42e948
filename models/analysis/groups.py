"""Group documents by deciles of a number or domains of a URL, and name clusters by their most distinctive words."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

HOST = r"^[A-Za-z][A-Za-z0-9+.\-]*:[/\\]{2}(?:[^/?#\\]*@)?(?:[Ww][Ww][Ww]\.)?(?P<host>\[[^\]/?#]*\]|[^/?#\\:@\s]+)"
LONGEST_HOST = 253  # characters of a domain name (RFC 1035)


def domains(urls: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return the host of each URL in lower case, without a leading "www."; null for a text without a host."""
    urls = urls.combine_chunks() if isinstance(urls, pa.ChunkedArray) else urls
    hosts = pc.struct_field(pc.extract_regex(urls, pattern=HOST), "host")
    hosts = pc.utf8_slice_codeunits(pc.utf8_rtrim(pc.utf8_lower(hosts), "."), 0, LONGEST_HOST)
    return pc.if_else(pc.equal(pc.fill_null(hosts, ""), ""), pa.scalar(None, pa.string()), hosts)


def decile_edges(values: NDArray[np.floating[Any]], groups: int = 10) -> NDArray[np.float64]:
    """Return the edges of groups of equal size, (2 to groups + 1,) ascending.

    Equal edges are merged, so values with many repetitions make fewer groups, and equal values make one group. Whole
    numbers have whole edges. Only finite values count; without any, the result is empty.
    """
    present = values[np.isfinite(values)]
    if not len(present):
        return np.empty(0)
    edges = np.quantile(present, np.linspace(0, 1, groups + 1))
    if (present == np.floor(present)).all():
        edges = np.ceil(edges)  # a whole number is above an edge exactly if it is above the edge rounded up
    edges = np.unique(edges)
    return edges if len(edges) > 1 else np.repeat(edges, 2)


def group_of(values: NDArray[np.floating[Any]], edges: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the group of each value, (n,): 0 to len(edges) - 2; -1 for NaN, and for all values without edges.

    A group includes its lower edge; the last group also its upper edge. Values outside the edges are in the first or
    the last group.
    """
    if not len(edges):
        return np.full(len(values), -1)
    inner = edges[1:-1]
    return np.where(np.isnan(values), -1, np.searchsorted(inner, values, side="right"))


def between_share(
    counts: NDArray[np.integer[Any]], sums: NDArray[np.floating[Any]], squares: NDArray[np.floating[Any]]
) -> float:
    """Return the share of the variance of values that is between their groups: 0 to 1.

    It is epsilon squared (Kelley 1935): eta squared without its bias, so that of random groups it is 0 on average,
    however many there are. Of constant values it is 0.

    Parameters
    ----------
    counts, sums, squares
        Of each group, (g,): how many values it has, their sum, and the sum of their squares.

    Examples
    --------
    >>> between_share(np.array([2, 2]), np.array([2.1, 6.1]), np.array([2.21, 18.61])) > 0.99
    True
    """
    counts, sums = counts[counts > 0], sums[counts > 0]
    n = int(counts.sum())
    free = n - len(counts)
    if free < 1:
        return 0.0
    total = float(squares.sum() - sums.sum() ** 2 / n)
    within = float(squares.sum() - (sums**2 / counts).sum())
    return max(0.0, 1 - within * (n - 1) / (total * free)) if total > 1e-9 * squares.sum() else 0.0


VOCABULARY = 20_000
WORD = r"(?u)\b[^\W\d_]{3,24}\b"
"""Letters of any script. A longer run of letters is not a word, but text without white space."""


def telling_words(
    texts: Sequence[str], labels: NDArray[np.integer[Any]], n_clusters: int, n_words: int = 3
) -> list[str]:
    """Name each cluster by at most `n_words` words of highest class-based tf-idf, joined by commas: (n_clusters,).

    The weight of a word in a cluster is its share of the cluster's words times log(1 + A / f), where f is its count in
    all clusters and A the mean number of words per cluster. Source: Grootendorst, BERTopic (arXiv 2203.05794). A word
    counts once per document, so that one page cannot name its cluster by repeating a word. `labels` are the clusters of
    the n texts, (n,), from 0; the name of a cluster without documents or words is empty.
    """
    from scipy.sparse import csr_matrix
    from sklearn.feature_extraction.text import CountVectorizer

    counter = CountVectorizer(
        token_pattern=WORD, stop_words="english", max_features=VOCABULARY, binary=True, dtype=np.float64
    )
    try:
        counts = counter.fit_transform(texts)
    except ValueError:  # no text has a word
        return [""] * n_clusters
    n = len(labels)
    members = csr_matrix((np.ones(n), (labels, np.arange(n))), shape=(n_clusters, n))
    frequencies = (members @ counts).toarray()  # (n_clusters, vocabulary)
    sizes = frequencies.sum(axis=1, keepdims=True)
    weights = frequencies / np.maximum(sizes, 1) * np.log1p(sizes.mean() / np.maximum(frequencies.sum(axis=0), 1))
    vocabulary = counter.get_feature_names_out()
    best = np.argsort(-weights, axis=1, kind="stable")[:, :n_words]
    return [
        ", ".join(vocabulary[word] for word in words if row[word] > 0) for row, words in zip(weights, best, strict=True)
    ]
