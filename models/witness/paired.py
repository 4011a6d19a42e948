"""Compare models that were trained on different documents, by their paired losses on the same held-out documents.

Two things make a difference between two arms uncertain: the seeds of the trainings and the choice of the held-out
documents. The error of the documents is that of their paired differences, summed by clusters (pages of one host). The
error of the seeds comes from the analysis of variance of a block design, in which every seed is a block that all arms
share: it is common to all arms, so that many arms of few seeds still measure how much seeds vary. A bootstrap of three
seeds does not: it is far too sure where three numbers happen to be alike.
"""

import math
from collections.abc import Sequence
from itertools import combinations
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

    def verdict(self, *, adjusted: float, seeds: int) -> str:
        """Return what may be said, given the p value adjusted for all comparisons."""
        if seeds < 2:
            return "no verdict from one seed"
        if adjusted < 1 - LEVEL:
            return "better" if self.difference < 0 else "worse"
        return "no difference seen"


def bits_per_byte(bits: NDArray[np.floating[Any]], sizes: NDArray[np.integer[Any]]) -> NDArray[np.float64]:
    """Return the bits per byte of losses in bits, (..., n), over documents of these sizes in bytes, (n,): (...,)."""
    return np.asarray(bits.sum(-1) / sizes.sum(), dtype=np.float64)


def compare_all(
    bits: NDArray[np.floating[Any]],
    sizes: NDArray[np.integer[Any]],
    clusters: NDArray[np.integer[Any]],
) -> list[Comparison]:
    """Compare every two arms on one held-out set, in the order of `itertools.combinations`.

    Parameters
    ----------
    bits
        Loss of every document under the model of every arm and seed: (arms, seeds, n), in bits. All arms have the same
        seeds.
    sizes
        Bytes of every document: (n,).
    clusters
        Cluster of every document, (n,): documents of one cluster are drawn together.

    Examples
    --------
    >>> random = np.random.default_rng(0)
    >>> bits = random.normal(800, 50, size=(1, 1, 200)) + random.normal(0, 1, size=(2, 3, 1))
    >>> [found] = compare_all(bits - [[[10]], [[0]]], np.full(200, 500), np.arange(200))
    >>> round(found.difference, 2), found.verdict(adjusted=found.p, seeds=3)
    (-0.02, 'better')
    """
    n_arms, n_seeds, _ = bits.shape
    losses = bits_per_byte(bits, sizes)  # (arms, seeds)
    error, freedom = _error_of_seeds(losses)
    held_out, of_arms = HeldOut(sizes, clusters), bits.mean(1)
    return [
        compared(
            float((losses[arm] - losses[other]).mean()),
            error * np.sqrt(2 / n_seeds),
            freedom,
            held_out.error(of_arms[arm] - of_arms[other]),
        )
        for arm, other in combinations(range(n_arms), 2)
    ]


def paired_deviation(bits: NDArray[np.floating[Any]], sizes: NDArray[np.integer[Any]]) -> float | None:
    """Return the standard deviation, over seeds, of the difference between two arms in bits per byte.

    `bits` are (arms, seeds, n), `sizes` (n,), as `compare_all` takes them; None if nothing varies: one arm or one seed.
    """
    error, freedom = _error_of_seeds(bits_per_byte(bits, sizes))
    return error * float(np.sqrt(2)) if freedom else None


def seeds_needed(deviation: float, effect: float) -> int:
    """Return how many seeds show a difference in 80% of experiments, if two arms differ by chance with this deviation.

    >>> seeds_needed(0.005, 0.01)
    5
    """
    from scipy import special

    seeds = 2
    while special.stdtrit(seeds - 1, [(1 + LEVEL) / 2, POWER]).sum() * deviation / math.sqrt(seeds) > effect:
        seeds += 1
    return seeds


def _error_of_seeds(losses: NDArray[np.float64]) -> tuple[float, int]:
    """Return the standard deviation of one training's loss around its arm's and its seed's, and its degrees of freedom.

    This is the residual of a two-way analysis of variance, of arms and seeds, without interaction.
    """
    n_arms, n_seeds = losses.shape
    freedom = (n_arms - 1) * (n_seeds - 1)
    if freedom == 0:
        return 0.0, 0
    rest = losses - losses.mean(1, keepdims=True) - losses.mean(0, keepdims=True) + losses.mean()
    return float(np.sqrt((rest**2).sum() / freedom)), freedom


def compared(difference: float, of_seeds: float, freedom: int, of_documents: float) -> Comparison:
    """Compare two arms by two independent errors: with Student's t, and with the normal distribution.

    At every level the interval's half-width is the root of the sum of both half-widths' squares. It holds the truth at
    least as often as it says, where one of the errors is 0 exactly as often.

    Parameters
    ----------
    difference
        Loss of the one less that of the other, in bits per byte.
    of_seeds, freedom
        Standard error of what was trained, of so many degrees of freedom; none if these are 0.
    of_documents
        Standard error of the choice of held-out documents.
    """
    from scipy import optimize, special

    def reach(tail: float, missed: float = 0.5) -> float:
        """Return the half-width of an interval that leaves out `tail` on each side."""
        seeds = -special.stdtrit(freedom, tail) - special.stdtrit(freedom, missed) if freedom else 0.0
        return float(np.hypot(seeds * of_seeds, (-special.ndtri(tail) - special.ndtri(missed)) * of_documents))

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
