"""Judge what arms taught a model: differences to random documents with intervals, each expressed as a dose of damage.

A loss is in bits per byte of held-out documents. Two things make the difference of two arms uncertain. The held-out
documents are a sample: their paired differences are summed by clusters (pages of one host) and vary between these. And
an arm is one draw of documents: how much losses vary from draw to draw is measured on arms that are drawn again and
again, random documents and random documents of a selection's lengths, pooled over these.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fineweb_mask.models.errors import DataError
from fineweb_mask.models.witness.paired import HeldOut, compared, holm

SHUFFLED = "shuffled"
"""Tokens that are exchanged among each other at random: damage of a known size."""
UNPREDICTABLE = 2.0
"""A held-out document is left out if random arms lose more on it, per byte, than so many times their median: encoded
binaries and the like, which no text predicts and a few of which would decide the mean."""


class Effect(NamedTuple):
    """How one arm differs from another on a held-out set, in bits per byte: negative where it predicts it better."""

    difference: float
    low: float  # ends of the 95% interval
    high: float
    adjusted: float  # two-sided p value, adjusted for all arms
    visible: float  # the smallest difference that would be seen in 80% of such experiments
    verdict: str


class Judged(NamedTuple):
    """What a held-out set says of the arms."""

    documents: int  # that losses were averaged over
    left_out: int  # documents that no arm predicts
    sees: float | None  # the smallest share of shuffled tokens that would be seen; None: more than was tried
    losses: dict[str, list[float]]  # by arm, of every draw of it, in bits per byte
    doses: dict[str, dict[float, float]]  # by kind and share, differences to random in bits per byte
    against_random: dict[str, Effect]
    against_lengths: dict[str, Effect]  # where an arm has random documents of its lengths beside it
    against_best: dict[str, Effect]  # of one arm, if that was asked for

    def as_dose(self, difference: float) -> tuple[str, float] | None:
        """Return the kind and share of the dose with the same effect; None if no dose has it.

        A share beyond the largest that was tried is infinite.
        """
        for kind, effects in self.doses.items():
            if (max(effects.values(), key=abs) > 0) == (difference > 0):
                return kind, _share_of(effects, difference)
        return None


def judge(
    bits: Mapping[str, NDArray[np.floating]],
    held_out: HeldOut,
    *,
    random: str,
    lengths: Mapping[str, str],
    doses: Mapping[str, Mapping[float, str]],
    best: str | None = None,
) -> Judged:
    """Compare arms on one held-out set.

    Parameters
    ----------
    bits
        Loss of every held-out document under the model of every draw of an arm: (draws, n) in bits, by arm.
    held_out
        Sizes, clusters and groups of the n documents.
    random
        The arm of random documents, of two draws or more.
    lengths
        For an arm, the one of random documents of its lengths.
    doses
        Arms by kind and share of damage (or of improvement) done to the first draws of `random`. The kind `shuffled`
        decides what is seen.
    best
        An arm that the others are compared with, too.

    Raises
    ------
    DataError
        If no document is left to average over.
    """
    predicted = _predictable(bits[random], held_out)
    if not predicted.any():
        raise DataError(
            f"none of the {len(predicted):,} held-out documents counts, for each is empty or alone of its group: at "
            "least one must have text, and another document in its group"
        )
    rest = held_out.take(predicted)
    kept = {name: of_arm[:, predicted] for name, of_arm in bits.items()}
    losses = {name: rest.losses(of_arm) for name, of_arm in kept.items()}
    dosed = {name for shares in doses.values() for name in shares.values()}
    controls = set(lengths.values())
    deviation, freedom = _deviation([loss for name, loss in losses.items() if name not in dosed])

    def compare(pairs: Mapping[str, str]) -> dict[str, Effect]:
        found = []
        for name, other in pairs.items():
            draws = deviation * np.sqrt(1 / len(kept[name]) + 1 / len(kept[other]))
            of_documents = rest.error(kept[name].mean(0) - kept[other].mean(0))
            difference = float(losses[name].mean() - losses[other].mean())
            found.append(compared(difference, draws, freedom, of_documents))
        return {
            name: Effect(*one[:3], adjusted, one.visible, one.verdict(adjusted))
            for name, one, adjusted in zip(pairs, found, holm([one.p for one in found]), strict=True)
        }

    compared_arms = [name for name in bits if name not in {random, *dosed, *controls}]
    against = compare(dict.fromkeys(compared_arms, random))
    effects = {
        kind: {
            share: float((losses[name] - losses[random][: len(losses[name])]).mean()) for share, name in shares.items()
        }
        for kind, shares in doses.items()
    }
    visible = max((effect.visible for effect in against.values()), default=np.inf)
    sees = _share_of(effects.get(SHUFFLED, {0.0: 0.0}), visible)
    return Judged(
        documents=int(predicted.sum()),
        left_out=int((~predicted).sum()),
        losses={name: loss.tolist() for name, loss in losses.items()},
        against_random=against,
        against_lengths=compare(lengths),
        against_best={} if best is None else compare({name: best for name in compared_arms if name != best}),
        doses=effects,
        sees=sees if np.isfinite(sees) else None,
    )


def _predictable(bits: NDArray[np.floating], held_out: HeldOut) -> NDArray[np.bool_]:
    """Return which documents count, (n,): those with text that something predicts, unless alone of their group."""
    counts = held_out.sizes > 0
    per_byte = bits.mean(0)[counts] / held_out.sizes[counts]
    counts[counts] = per_byte <= UNPREDICTABLE * np.median(per_byte) if len(per_byte) else False
    counts[counts] = held_out.take(counts).not_alone
    return np.asarray(counts, dtype=np.bool_)


def _deviation(losses: Sequence[NDArray[np.float64]]) -> tuple[float, int]:
    """Return the standard deviation of one draw of documents around its arm, pooled, and its degrees of freedom."""
    freedom = sum(len(draws) - 1 for draws in losses)
    squares = sum(((draws - draws.mean()) ** 2).sum() for draws in losses)
    return (float(np.sqrt(squares / freedom)), freedom) if freedom else (0.0, 0)


def _share_of(effects: Mapping[float, float], difference: float) -> float:
    """Return the share whose effect is a difference, between the shares that were tried; infinite beyond them."""
    shares = sorted(effects)
    known = np.maximum.accumulate(np.abs([0.0, *(effects[share] for share in shares)]))
    if abs(difference) > known[-1]:
        return float("inf")
    return float(np.interp(abs(difference), known, [0.0, *shares]))
