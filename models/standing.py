"""Compare one document with those that it competes with: how many are worse, its rank, its distance from selection."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

READABLE = 0.25
"""Standard deviations of the marginal gains by which the logit of an inclusion rises by 1: that of `mean_field`."""
LEAST = 2.0**-24
"""Distance from 0 and 1 below which an inclusion, a float32, tells no gains apart."""


class Standing(NamedTuple):
    """Where a document is in the order of those that it competes with, the most wanted first."""

    rank: int  # from 1
    of: int
    share: float  # of all documents, or tokens, that those up to it have: what a budget must be to take it


def standing(inclusion: NDArray[np.floating], masses: NDArray[np.integer], place: int) -> Standing:
    """Return where the document at a place is by inclusion, (n,), the earlier first of equal ones.

    Parameters
    ----------
    inclusion
        What documents are ordered by, (n,); NaN comes last.
    masses
        What each takes of the budget, (n,): 1, or its tokens.
    place
        The document's.

    Examples
    --------
    >>> standing(np.array([0.1, 0.9, 0.5, 0.5]), np.array([10, 20, 30, 40]), 3)
    Standing(rank=3, of=4, share=0.9)
    """
    wanted = np.where(np.isnan(inclusion), -np.inf, inclusion)
    before = wanted > wanted[place]
    before[: place + 1] |= wanted[: place + 1] == wanted[place]
    return Standing(int(before.sum()), len(wanted), float(masses[before].sum() / max(1, masses.sum())))


def edge(inclusion: NDArray[np.floating], selected: NDArray[np.bool_]) -> float:
    """Return the threshold of a selection: halfway between the K-th and the next largest inclusion.

    >>> edge(np.array([0.1, 0.9, 0.5]), np.array([False, True, False]))
    0.7
    """
    ordered, k = np.sort(np.nan_to_num(inclusion))[::-1], int(selected.sum())
    return float(ordered[max(k - 1, 0)] + ordered[min(k, len(ordered) - 1)]) / 2


def margin(inclusion: float, threshold: float) -> float:
    """Return how far a marginal gain is above the threshold (the dual price), in deviations of all marginal gains.

    Parameters
    ----------
    inclusion
        As `mean_field` reports it: the logistic function of this distance over `READABLE`.
    threshold
        The inclusion at the threshold.

    Examples
    --------
    >>> margin(0.5, 0.5), round(margin(0.1, 0.5), 2)
    (0.0, -0.55)
    """
    one, other = (np.clip(value, LEAST, 1 - LEAST) for value in (inclusion, threshold))
    return float(READABLE * (np.log(one / (1 - one)) - np.log(other / (1 - other))))
