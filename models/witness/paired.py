"""Compare models that were trained on different documents, by their paired losses on the same held-out documents.

Two things make a difference between two arms uncertain: the seeds of the trainings and the choice of the held-out
documents. Both are drawn again: documents by a bootstrap of clusters (pages of one host are drawn together); seeds by
the analysis of variance of a block design, in which every seed is a block that all arms share. Its error is common to
all arms, so that many arms of few seeds still measure how much seeds vary. A bootstrap of three seeds does not: it is
far too sure where three numbers happen to be alike.
"""

import math
from collections.abc import Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 1000
LEVEL = 0.95
POWER = 0.8
LEAST_P = 1e-12  # smaller p values are not distinguished


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
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
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
    resamples
        Bootstrap samples of the documents.
    seed
        Seed of the bootstrap.

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
    means = _drawn_means(bits, sizes, clusters, resamples, seed)  # (resamples, arms)
    return [
        compared(
            float((losses[arm] - losses[other]).mean()),
            error * np.sqrt(2 / n_seeds),
            freedom,
            float((means[:, arm] - means[:, other]).std()),
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


def _drawn_means(
    bits: NDArray[np.floating[Any]],
    sizes: NDArray[np.integer[Any]],
    clusters: NDArray[np.integer[Any]],
    resamples: int,
    seed: int,
) -> NDArray[np.float64]:
    """Return every arm's bits per byte, the mean over its seeds, on drawn clusters of documents: (resamples, arms)."""
    names, cluster = np.unique(clusters, return_inverse=True)
    of_arms = np.stack([np.bincount(cluster, row, len(names)) for row in bits.mean(1)])  # (arms, clusters)
    weights = np.bincount(cluster, sizes, len(names))
    random = np.random.default_rng(seed)
    counts = random.multinomial(len(names), np.full(len(names), 1 / len(names)), size=resamples)
    return np.asarray(counts @ of_arms.T / (counts @ weights)[:, None], dtype=np.float64)


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
