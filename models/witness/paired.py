"""Compare models that were trained on different documents, by their paired losses on the same held-out documents.

Two things make a difference between two arms uncertain: the draw of what was trained on, and the choice of the held-out
documents. The error of these is that of their paired differences, summed by clusters (pages of one host).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.95
POWER = 0.8
LEAST_P = 1e-12  # smaller p values are not distinguished


class HeldOut(NamedTuple):
    """How the losses on n held-out documents are averaged."""

    sizes: NDArray[np.integer[Any]]  # (n,), bytes
    clusters: NDArray[np.integer[Any]]  # (n,): documents of one cluster are drawn together
    groups: NDArray[np.int64] | None = None  # (n,): every group counts as much as another; None: every byte

    def take(self, rows: NDArray[Any]) -> Self:
        """Return some of the documents, by their places or by a mask."""
        groups = None if self.groups is None else self.groups[rows]
        return type(self)(self.sizes[rows], self.clusters[rows], groups)

    def losses(self, bits: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return the mean loss of arms in bits per byte, from bits (..., n): (...,)."""
        return np.asarray(bits @ self._weights, dtype=np.float64)

    def error(self, difference: NDArray[np.floating]) -> float:
        """Return the standard error of a mean difference, from differences in bits, (n,), by linearisation.

        Source: Cochran, "Sampling techniques" (1977), sections 6.3 and 11.8: the ratio estimator, by clusters.
        """
        of = np.zeros(len(self.sizes), dtype=np.int64) if self.groups is None else self.groups
        groups = np.unique(of, return_inverse=True)[1]
        ratio = np.bincount(groups, difference) / np.bincount(groups, self.sizes)
        sums = np.bincount(self.clusters, self._weights * (difference - ratio[groups] * self.sizes))
        sums = sums[np.bincount(self.clusters) > 0]
        return float(np.sqrt((sums**2).sum() * len(sums) / max(len(sums) - 1, 1)))

    @property
    def not_alone(self) -> NDArray[np.bool_]:
        """Which documents have another of their group: one alone would count as much as a whole group, (n,)."""
        if self.groups is None:
            return np.ones(len(self.sizes), dtype=np.bool_)
        return np.asarray(np.bincount(self.groups)[self.groups] > 1, dtype=np.bool_)

    @property
    def _weights(self) -> NDArray[np.float64]:
        if self.groups is None:
            return np.full(len(self.sizes), 1 / self.sizes.sum())
        names, of = np.unique(self.groups, return_inverse=True)
        return np.asarray(1 / (len(names) * np.bincount(of, self.sizes)[of]), dtype=np.float64)


class Comparison(NamedTuple):
    """How one arm differs from another on one held-out set, in bits per byte: negative where it predicts it better."""

    difference: float
    low: float  # ends of the 95% interval
    high: float
    p: float  # two-sided
    visible: float  # the smallest difference that would be seen in 80% of such experiments

    def verdict(self, adjusted: float) -> str:
        """Return what may be said, given the p value adjusted for all comparisons."""
        if adjusted < 1 - LEVEL:
            return "better" if self.difference < 0 else "worse"
        return "no difference seen"


def compared(difference: float, of_draws: float, freedom: int, of_documents: float) -> Comparison:
    """Compare two arms by two independent errors: with Student's t, and with the normal distribution.

    At every level the interval's half-width is the root of the sum of both half-widths' squares. It holds the truth at
    least as often as it says, where one of the errors is 0 exactly as often.

    Parameters
    ----------
    difference
        Loss of the one less that of the other, in bits per byte.
    of_draws, freedom
        Standard error of the draws of an arm, of so many degrees of freedom; none if these are 0.
    of_documents
        Standard error of the choice of held-out documents.
    """
    from scipy import optimize, special

    def reach(tail: float, missed: float = 0.5) -> float:
        """Return the half-width of an interval that leaves out `tail` on each side."""
        draws = -special.stdtrit(freedom, tail) - special.stdtrit(freedom, missed) if freedom else 0.0
        return float(np.hypot(draws * of_draws, (-special.ndtri(tail) - special.ndtri(missed)) * of_documents))

    half, size = reach((1 - LEVEL) / 2), abs(difference)
    if size >= reach(LEAST_P / 2):
        p = LEAST_P if size else 1.0
    else:
        p = float(2 * np.exp(optimize.brentq(lambda log: reach(np.exp(log)) - size, np.log(LEAST_P / 2), np.log(0.5))))
    return Comparison(difference, difference - half, difference + half, p, reach((1 - LEVEL) / 2, 1 - POWER))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's adjusted p values, which keep the chance of one false verdict among all below their level.

    Examples
    --------
    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    values, order = np.asarray(p_values, dtype=np.float64), np.argsort(p_values, kind="stable")
    adjusted = np.empty(len(order))
    adjusted[order] = np.minimum(np.maximum.accumulate(np.arange(len(order), 0, -1) * values[order]), 1)
    return [float(value) for value in adjusted]
