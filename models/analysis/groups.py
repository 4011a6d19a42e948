"""Group documents by deciles of a number or domains of a URL, and name clusters by their most distinctive words."""

import re
from collections import Counter
from collections.abc import Sequence
from math import log
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


def decile_edges(values: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Return the edges of ten groups of equal size, (2 to 11,) ascending; none of no values. All values are finite.

    A group has its lower edge, and the last one its upper edge, too. Equal edges are merged, so values with many
    repetitions make fewer groups, and equal values make one group. Whole numbers have whole edges.
    """
    if not len(values):
        return np.empty(0)
    edges = np.quantile(values, np.linspace(0, 1, 11))
    if (values == np.floor(values)).all():
        edges = np.ceil(edges)  # a whole number is above an edge exactly if it is above the edge rounded up
    edges = np.unique(edges)
    return edges if len(edges) > 1 else np.repeat(edges, 2)


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


WORD = re.compile(r"\b[^\W\d_]{3,24}\b")
"""Letters of any script. A longer run of letters is not a word, but text without white space."""
LEAST_DOCUMENTS = 3
"""Of a cluster, that must hold a word for it to be named by it; of a smaller cluster, all."""


def telling_words(
    texts: Sequence[str], labels: NDArray[np.integer[Any]], n_clusters: int, n_words: int = 3
) -> list[str]:
    """Name each cluster by at most `n_words` words that tell most about it, joined by commas: (n_clusters,).

    A word weighs p log(p / q): p is its share of the cluster's words, q that of all words, so that a word which is
    everywhere weighs nothing, in any language. Source: Tomokiyo and Hurst 2003, "A language model approach to keyphrase
    extraction" (informativeness). A word counts once per document, so that one page cannot name its cluster by
    repeating a word. `labels` are the clusters of the n texts, (n,), from 0; the name of a cluster without documents or
    words is empty.

    Examples
    --------
    >>> telling_words(["the whale", "the whale", "the oven", "the flour oven"], np.array([0, 0, 1, 1]), 2, n_words=1)
    ['whale', 'oven']
    """
    found = [Counter[str]() for _ in range(n_clusters)]
    overall = Counter[str]()
    for text, label in zip(texts, labels.tolist(), strict=True):
        words = set(WORD.findall(text.lower()))
        found[label].update(words)
        overall.update(words)
    every = overall.total()
    sizes = np.bincount(labels, minlength=n_clusters).tolist()

    def told(words: Counter[str], documents: int) -> str:
        own, least = words.total(), min(LEAST_DOCUMENTS, documents)
        weights = {
            word: count * log(count * every / (own * overall[word])) for word, count in words.items() if count >= least
        }
        best = sorted(weights, key=lambda word: (-weights[word], word))[:n_words]
        return ", ".join(word for word in best if weights[word] > 0)

    return [told(words, documents) for words, documents in zip(found, sizes, strict=True)]
