"""Compare models that were trained on different documents, by their paired losses on the same held-out documents.

Two things make a difference between two arms uncertain: the seeds of the trainings and the choice of the held-out
documents. A hierarchical bootstrap draws both again: seeds, then clusters of documents (pages of one host). Few seeds
say little about how much seeds vary, so the bootstrap's standard error is multiplied by the quantile of Student's t
with Satterthwaite's degrees of freedom, not by the normal one.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

RESAMPLES = 2000
LEVEL = 0.95
POWER = 0.8


class Comparison(NamedTuple):
    """How arm A differs from arm B on one held-out set, in bits per byte: negative where A predicts it better."""

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
    """Return the bits per byte of each seed.

    Parameters
    ----------
    bits
        Loss of every document under the model of every seed: (seeds, n), in bits.
    sizes
        Bytes of every document: (n,).
    """
    return np.asarray(bits.sum(1) / sizes.sum(), dtype=np.float64)


def compare(
    bits: NDArray[np.floating[Any]],
    other: NDArray[np.floating[Any]],
    sizes: NDArray[np.integer[Any]],
    clusters: NDArray[np.integer[Any]],
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Comparison:
    """Compare two arms on one held-out set.

    Parameters
    ----------
    bits, other
        Loss of every document under the model of every seed, of each arm: (seeds, n), in bits. The seeds are paired.
    sizes
        Bytes of every document: (n,).
    clusters
        Cluster of every document, (n,): documents of one cluster are drawn together.
    resamples
        Bootstrap samples.
    seed
        Seed of the bootstrap.

    Examples
    --------
    >>> random = np.random.default_rng(0)
    >>> bits = random.normal(800, 50, size=(3, 200))
    >>> compared = compare(bits - 10, bits, np.full(200, 500), np.arange(200))
    >>> round(compared.difference, 3), compared.verdict(adjusted=compared.p, seeds=3)
    (-0.02, 'better')
    """
    of_seeds = bits_per_byte(bits, sizes) - bits_per_byte(other, sizes)
    difference, seeds = float(of_seeds.mean()), len(of_seeds)
    of_clusters, cluster = np.unique(clusters, return_inverse=True)
    weights = np.bincount(cluster, sizes)  # (clusters,)
    sums = np.stack([np.bincount(cluster, row, len(of_clusters)) for row in (bits - other)])  # (seeds, clusters)
    random = np.random.default_rng(seed)
    counts = random.multinomial(len(of_clusters), np.full(len(of_clusters), 1 / len(of_clusters)), size=resamples)
    drawn = counts @ sums.T / (counts @ weights)[:, None]  # (resamples, seeds), bits per byte of the drawn documents
    of_documents = float(drawn.mean(1).var(ddof=1)) if len(of_clusters) > 1 else 0.0
    if seeds < 2:
        return _comparison(difference, of_documents, np.inf)
    picked = random.integers(seeds, size=(resamples, seeds))
    means = np.take_along_axis(drawn, picked, axis=1).mean(1)
    # Drawn seeds vary less than new ones would, by the factor (seeds - 1) / seeds.
    of_seeds_variance = max(float(means.var(ddof=1)) - of_documents, 0.0) * seeds / (seeds - 1)
    of_seeds_variance = max(of_seeds_variance, float(of_seeds.var(ddof=1)) / seeds)
    variance = of_documents + of_seeds_variance
    freedom = (seeds - 1) * (variance / of_seeds_variance) ** 2 if of_seeds_variance > 0 else np.inf
    return _comparison(difference, variance, freedom)


def _comparison(difference: float, variance: float, freedom: float) -> Comparison:
    error = float(np.sqrt(variance))
    t = stats.t(freedom) if np.isfinite(freedom) else stats.norm()
    reach = float(t.ppf((1 + LEVEL) / 2)) * error
    p = float(2 * t.sf(abs(difference) / error)) if error > 0 else float(difference == 0)
    return Comparison(difference, difference - reach, difference + reach, p, reach + float(t.ppf(POWER)) * error)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's adjusted p values, which keep the chance of one false verdict among all below their level.

    Examples
    --------
    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(p_values, kind="stable")
    adjusted = np.empty(len(order))
    largest = 0.0
    for rank, place in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p_values[place]))
        adjusted[place] = largest
    return [float(value) for value in adjusted]
