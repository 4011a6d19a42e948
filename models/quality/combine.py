"""Several scores made one quality.

Each is standardised with fixed statistics of the corpus, so that shards scored on different days agree.
"""

from collections.abc import Mapping
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Statistics = Mapping[str, tuple[float, float]]
"""Per scorer, the mean and standard deviation of its score over a sample of the corpus."""


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
    """Return one quality per document, (n,).

    Parameters
    ----------
    scores
        Columns (n,) by scorer name.
    weights
        Weight of each in the sum.
    statistics
        What `fit_statistics` returned for this corpus.
    how
        `weighted_sum` of the standardised scores, or their `minimum` (the weights are not used).
    """
    standardised = {
        name: (column.astype(np.float64) - statistics[name][0]) / statistics[name][1] for name, column in scores.items()
    }
    if how == "minimum":
        combined = np.min(np.stack(list(standardised.values())), axis=0)
    else:
        combined = np.sum([weights[name] * column for name, column in standardised.items()], axis=0)
    return np.asarray(combined, dtype=np.float32)
