"""Combine the scores of several scorers into one quality.

Each score is standardised with fixed statistics of the corpus, so that shards scored on different days agree; or with
those of the document's group, such as its language, in which a classifier may give all documents lower scores.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fineweb_mask.models.settings.quality import Combination

Statistics = Mapping[str, tuple[float, float]]
"""Mean and standard deviation of each scorer's score over a sample of the corpus, by scorer name."""


def fit_statistics(scores: Mapping[str, NDArray[np.float32]]) -> dict[str, tuple[float, float]]:
    """Return the mean and standard deviation of each column (n,); a constant column gets deviation 1."""
    statistics = {}
    for name, column in scores.items():
        values = column.astype(np.float64)
        statistics[name] = (float(values.mean()), float(values.std()) or 1.0)
    return statistics


def fit_group_statistics(
    scores: Mapping[str, NDArray[np.float32]], groups: Sequence[str], least: int
) -> dict[str, dict[str, tuple[float, float]]]:
    """Return the statistics of each group with at least `least` documents, by its name; `groups` has n names.

    >>> scores = {"edu": np.array([1, 3, 9], dtype=np.float32)}
    >>> fit_group_statistics(scores, ["en", "en", "de"], least=2)
    {'en': {'edu': (2.0, 1.0)}}
    """
    names, members = np.unique(np.asarray(groups, dtype=object).astype(str), return_inverse=True)
    found = {str(name): members == place for place, name in enumerate(names)}
    return {
        name: fit_statistics({scorer: column[inside] for scorer, column in scores.items()})
        for name, inside in found.items()
        if inside.sum() >= least
    }


def combine_scores(
    scores: Mapping[str, NDArray[np.float32]],
    weights: Mapping[str, float],
    statistics: Statistics,
    how: Combination,
    groups: Sequence[str] | None = None,
    of_groups: Mapping[str, Statistics] | None = None,
    documents: int = 1,
) -> NDArray[np.float32]:
    """Combine standardised columns (n,), by scorer name, into one quality per document: (n,).

    `statistics` is the result of `fit_statistics` for this corpus. A column of weight 0 is left out; other than that,
    `minimum` and `maximum` do not use the weights. A document whose group, of `groups` (n,), is in `of_groups` is
    standardised with the statistics there. Without any column, the quality of so many `documents` is 0.
    """
    if not scores:
        return np.zeros(documents, dtype=np.float32)
    standardised = {}
    own = [statistics] if groups is None or not of_groups else [of_groups.get(group, statistics) for group in groups]
    for name, column in scores.items():
        if weights[name]:
            mean, deviation = np.array([one[name] for one in own], dtype=np.float64).reshape(-1, 2).T
            standardised[name] = (column.astype(np.float64) - mean) / deviation
    if how == "weighted_sum":
        combined = np.sum([weights[name] * column for name, column in standardised.items()], axis=0)
    else:
        best = np.min if how == "minimum" else np.max
        combined = best(np.stack(list(standardised.values())), axis=0)
    return np.asarray(combined, dtype=np.float32)
