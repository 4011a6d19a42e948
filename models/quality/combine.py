"""Combine the scores of several scorers into one quality.

Each score is standardised with fixed statistics of the corpus, so that shards scored on different days agree.
"""

from collections.abc import Mapping
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Statistics = Mapping[str, tuple[float, float]]
"""Mean and standard deviation of each scorer's score over a sample of the corpus, by scorer name."""


def fit_statistics(scores: Mapping[str, NDArray[np.float32]]) -> dict[str, tuple[float, float]]:
    """Return the mean and standard deviation of each column (n,); a constant column gets deviation 1."""
    statistics = {}
    for name, column in scores.items():
        values = column.astype(np.float64)
        statistics[name] = (float(values.mean()), float(values.std()) or 1.0)
    return statistics


def combine_scores(
    scores: Mapping[str, NDArray[np.float32]],
    weights: Mapping[str, float],
    statistics: Statistics,
    how: Literal["weighted_sum", "minimum"],
) -> NDArray[np.float32]:
    """Combine standardised columns (n,), by scorer name, into one quality per document: (n,).

    `statistics` is the result of `fit_statistics` for this corpus. A column of weight 0 is left out; other than that,
    `minimum` does not use the weights.
    """
    standardised = {
        name: (column.astype(np.float64) - statistics[name][0]) / statistics[name][1]
        for name, column in scores.items()
        if weights[name]
    }
    if how == "minimum":
        combined = np.min(np.stack(list(standardised.values())), axis=0)
    else:
        combined = np.sum([weights[name] * column for name, column in standardised.items()], axis=0)
    return np.asarray(combined, dtype=np.float32)
