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
    """Return the mean and standard deviation of each column (n,); a constant column gets deviation 1.

    >>> fit_statistics({"edu": np.array([1, 3], dtype=np.float32)})
    {'edu': (2.0, 1.0)}
    """
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
    """Return one quality per document, (n,).

    Parameters
    ----------
    scores
        Columns (n,) by scorer name.
    weights
        Weight in the sum by scorer name; not used by `minimum`.
    statistics
        Result of `fit_statistics` for this corpus.
    how
        `weighted_sum` or `minimum` of the standardised scores.

    Examples
    --------
    >>> scores = {"edu": np.array([1, 3], dtype=np.float32), "length": np.array([20, 0], dtype=np.float32)}
    >>> combine_scores(scores, {"edu": 1.0, "length": 0.5}, fit_statistics(scores), "weighted_sum")
    array([-0.5,  0.5], dtype=float32)
    """
    standardised = {
        name: (column.astype(np.float64) - statistics[name][0]) / statistics[name][1] for name, column in scores.items()
    }
    if how == "minimum":
        combined = np.min(np.stack(list(standardised.values())), axis=0)
    else:
        combined = np.sum([weights[name] * column for name, column in standardised.items()], axis=0)
    return np.asarray(combined, dtype=np.float32)
