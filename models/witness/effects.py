"""Judge what arms taught a model: differences to random documents, by their losses on the same held-out documents.

A loss is in bits per byte of held-out documents. Two things make the difference of two arms uncertain. The held-out
documents are a sample: their paired differences are summed by clusters (pages of one host) and vary between these. And
an arm is one draw of documents: how much losses vary from draw to draw is measured on arms that are drawn again and
again, random documents and random documents of a selection's lengths, pooled over these.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from fineweb_mask.models.errors import DataError

LEVEL = 0.95
POWER = 0.8
LEAST_P = 1e-12  # smaller p values are not distinguished
NORMAL = 1e6  # degrees of freedom with which Student's t is the normal distribution
UNPREDICTABLE = 2.0
"""A held-out document is left out if random arms lose more on it, per byte, than so many times their median: encoded
binaries and the like, which no text predicts and a few of which would decide the mean."""


class HeldOut(NamedTuple):
    """How the losses on n held-out documents are averaged: every byte counts as much as another."""

    sizes: NDArray[np.integer[Any]]  # (n,), bytes
    clusters: NDArray[np.integer[Any]]  # (n,): documents of one cluster are drawn together

    def take(self, rows: NDArray[Any]) -> Self:
        """Return some of the documents, by their places or by a mask."""
        return type(self)(self.sizes[rows], self.clusters[rows])

    def losses(self, bits: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return the mean loss of arms in bits per byte, from bits (..., n): (...,)."""
        return np.asarray(bits.sum(axis=-1) / self.sizes.sum(), dtype=np.float64)

    def error(self, difference: NDArray[np.floating]) -> float:
        """Return the standard error of a mean difference, from differences in bits, (n,), by linearisation.

        Source: Cochran, "Sampling techniques" (1977), sections 6.3 and 11.8: the ratio estimator, by clusters.
        """
        total = self.sizes.sum()
        sums = np.bincount(self.clusters, (difference - difference.sum() / total * self.sizes) / total)
        sums = sums[np.bincount(self.clusters) > 0]
        return float(np.sqrt((sums**2).sum() * len(sums) / max(len(sums) - 1, 1)))


class Effect(NamedTuple):
    """How one arm differs from another on a held-out set, in bits per byte: negative where it predicts it better."""

    difference: float
    low: float  # ends of the 95% interval
    high: float
    adjusted: float  # two-sided p value, adjusted for all arms
    visible: float  # the smallest difference that would be seen in 80% of such experiments

    @property
    def verdict(self) -> str:
        """What may be said."""
        if self.adjusted < 1 - LEVEL:
            return "better" if self.difference < 0 else "worse"
        return "no difference seen"


class Judged(NamedTuple):
    """What a held-out set says of the arms."""

    documents: int  # that losses were averaged over
    left_out: int  # documents that no arm predicts
    losses: dict[str, list[float]]  # by arm, of every draw of it, in bits per byte
    against_random: dict[str, Effect]
    against_lengths: dict[str, Effect]  # where an arm has random documents of its lengths beside it
    against_best: dict[str, Effect]  # of one arm, if that was asked for


def judge(
    bits: Mapping[str, NDArray[np.floating]],
    held_out: HeldOut,
    *,
    random: str,
    lengths: Mapping[str, str],
    best: str | None = None,
) -> Judged:
    """Compare arms on one held-out set.

    Parameters
    ----------
    bits
        Loss of every held-out document under the model of every draw of an arm: (draws, n) in bits, by arm.
    held_out
        Sizes and clusters of the n documents.
    random
        The arm of random documents, of two draws or more.
    lengths
        For an arm, the one of random documents of its lengths.
    best
        An arm that the others are compared with, too.

    Raises
    ------
    DataError
        If no document is left to average over.
    """
    predicted = _predictable(bits[random], held_out)
    if not predicted.any():
        raise DataError(f"of the {len(predicted):,} held-out documents, at least one must have text")
    rest = held_out.take(predicted)
    kept = {name: of_arm[:, predicted] for name, of_arm in bits.items()}
    losses = {name: rest.losses(of_arm) for name, of_arm in kept.items()}
    deviation, freedom = _deviation(list(losses.values()))

    def compare(pairs: Mapping[str, str]) -> dict[str, Effect]:
        found = []
        for name, other in pairs.items():
            draws = deviation * np.sqrt(1 / len(kept[name]) + 1 / len(kept[other]))
            of_documents = rest.error(kept[name].mean(0) - kept[other].mean(0))
            difference = float(losses[name].mean() - losses[other].mean())
            found.append(compared(difference, draws, freedom, of_documents))
        adjusted = holm([one.adjusted for one in found])
        return {name: one._replace(adjusted=p) for name, one, p in zip(pairs, found, adjusted, strict=True)}

    arms = [name for name in bits if name not in {random, *lengths.values()}]
    return Judged(
        documents=int(predicted.sum()),
        left_out=int((~predicted).sum()),
        losses={name: loss.tolist() for name, loss in losses.items()},
        against_random=compare(dict.fromkeys(arms, random)),
        against_lengths=compare(lengths),
        against_best={} if best is None else compare({name: best for name in arms if name != best}),
    )


def _predictable(bits: NDArray[np.floating], held_out: HeldOut) -> NDArray[np.bool_]:
    """Return which documents count, (n,): those with text that something predicts."""
    counts = held_out.sizes > 0
    per_byte = bits.mean(0)[counts] / held_out.sizes[counts]
    counts[counts] = per_byte <= UNPREDICTABLE * np.median(per_byte) if len(per_byte) else False
    return np.asarray(counts, dtype=np.bool_)


def _deviation(losses: Sequence[NDArray[np.float64]]) -> tuple[float, int]:
    """Return the standard deviation of one draw of documents around its arm, pooled, and its degrees of freedom."""
    freedom = sum(len(draws) - 1 for draws in losses)
    squares = sum(((draws - draws.mean()) ** 2).sum() for draws in losses)
    return (float(np.sqrt(squares / freedom)), freedom) if freedom else (0.0, 0)


def compared(difference: float, of_draws: float, freedom: int, of_documents: float) -> Effect:
    """Compare two arms by two independent errors, with Student's t; the p value is of this comparison alone.

    Source: Welch 1947, "The generalization of Student's problem": the degrees of freedom of a sum of two variances, of
    which that of documents has many.

    Parameters
    ----------
    difference
        Loss of the one less that of the other, in bits per byte.
    of_draws, freedom
        Standard error of the draws of an arm, of so many degrees of freedom; none if these are 0.
    of_documents
        Standard error of the choice of held-out documents.
    """
    from scipy import special

    error = float(np.hypot(of_draws, of_documents))
    free = min(freedom * (error / of_draws) ** 4, NORMAL) if freedom and of_draws else NORMAL
    half, power = (-float(special.stdtrit(free, tail)) * error for tail in ((1 - LEVEL) / 2, 1 - POWER))
    p = 2 * float(special.stdtr(free, -abs(difference) / error)) if error else float(difference == 0)
    return Effect(difference, difference - half, difference + half, max(p, LEAST_P), half + power)


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
