"""Name clusters of documents by their most distinctive words."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import CountVectorizer

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
