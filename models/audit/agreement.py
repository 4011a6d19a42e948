"""Measure how much of a score is the group of a document: variance, ranks, the best tenth; and intervals of shares."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

TOP = 0.1
"""Share of the documents that is called the best."""


class Interval(NamedTuple):
    """A share of n cases, and where it lies with 95% confidence."""

    share: float
    low: float
    high: float
    n: int


def wilson(hits: int, n: int) -> Interval | None:
    """Return a share with its 95% interval by Wilson's score (1927); None of no cases.

    >>> [round(number, 3) for number in wilson(71, 100)]
    [0.71, 0.615, 0.79, 100]
    """
    from scipy.stats import binomtest

    if not n:
        return None
    low, high = binomtest(hits, n).proportion_ci(method="wilson")
    return Interval(hits / n, float(low), float(high), n)


def between_share(values: NDArray[np.floating], groups: NDArray[np.integer]) -> float:
    """Return the share of the variance of values (n,) that is between their groups (n,): 0 to 1.

    It is epsilon squared (Kelley 1935), which of random groups is 0 on average, however many there are. Of constant
    values it is 0.

    >>> between_share(np.array([1.0, 1.1, 3.0, 3.1]), np.array([0, 0, 1, 1])) > 0.99
    True
    """
    values = np.asarray(values, dtype=np.float64)
    _, members = np.unique(groups, return_inverse=True)
    counts = np.bincount(members)
    means = np.bincount(members, weights=values) / counts
    total = float(((values - values.mean()) ** 2).sum())
    within = float(((values - means[members]) ** 2).sum())
    free = len(values) - len(counts)
    if not total or free < 1:
        return 0.0
    return max(0.0, 1 - within * (len(values) - 1) / (total * free))


def group_auc(values: NDArray[np.floating], groups: NDArray[np.integer], seed: int = 0) -> float | None:
    """Return how well the group alone tells which documents have one of the best tenth of values: an AUC, 0 to 1.

    Of one random half of the documents, every group's share of the best is counted; of the other half, the AUC is
    taken of these shares. 0.5 is no better than chance. None where all values are equal, or too few to halve.
    """
    from sklearn.metrics import roc_auc_score

    is_best = best(values)
    _, members = np.unique(groups, return_inverse=True)
    half = np.random.default_rng(seed).random(len(values)) < 0.5
    rest = ~half
    if not half.any() or is_best[rest].all() or not is_best[rest].any():
        return None
    counts = np.bincount(members[half], minlength=members.max() + 1)
    of_best = np.bincount(members[half], weights=is_best[half], minlength=members.max() + 1)
    return float(roc_auc_score(is_best[rest], (of_best / np.maximum(counts, 1))[members[rest]]))


def best(values: NDArray[np.floating], top: float = TOP) -> NDArray[np.bool_]:
    """Return which values (n,) are above all but a share of them; of equal ones at the edge, none.

    >>> best(np.arange(10.0)).nonzero()[0].tolist(), bool(best(np.ones(10)).any())
    ([9], False)
    """
    return np.asarray(values > np.quantile(values, 1 - top, method="lower"))


def rank_agreement(columns: NDArray[np.floating]) -> float | None:
    """Return the mean rank correlation (Spearman's) of every two columns of (n, s); None where one is constant.

    >>> rank_agreement(np.array([[1, 2], [2, 4], [3, 9]]))
    1.0
    """
    from scipy.stats import rankdata

    if columns.shape[1] < 2 or len(columns) < 3 or (columns == columns[0]).all(axis=0).any():
        return None
    correlations = np.corrcoef(rankdata(columns, axis=0), rowvar=False)
    return float(correlations[np.triu_indices(columns.shape[1], 1)].mean().round(12))
