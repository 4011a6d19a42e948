"""What clusters of documents are about: their most telling words."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import CountVectorizer

VOCABULARY = 20_000
WORD = r"(?u)\b[^\W\d_]{3,24}\b"
"""Letters of any script; longer runs are no words but what was not split."""


def telling_words(
    texts: Sequence[str], labels: NDArray[np.integer[Any]], n_clusters: int, n_words: int = 3
) -> list[str]:
    """Return a name for every cluster: its words of the highest class-based tf-idf, the most telling first.

    A word's weight in a cluster is its share of the cluster's words times log(1 + A / f), with f its count in all
    clusters and A the mean number of words in a cluster. Source: Grootendorst, BERTopic (arXiv 2203.05794).
    Each document counts a word once, so that a page that repeats a word does not name its cluster.

    Parameters
    ----------
    texts
        The documents.
    labels
        (n,) each document's cluster, from 0 to n_clusters - 1.
    n_clusters
        How many clusters there are.
    n_words
        Most words in a name.

    Returns
    -------
    list of str
        Words joined by commas; empty for a cluster without a document or a word.
    """
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
    names = []
    for row in weights:
        best = np.lexsort((np.arange(len(row)), -row))[:n_words]
        names.append(", ".join(vocabulary[word] for word in best if row[word] > 0))
    return names
