"""Train a language model of n-grams on every arm of a comparison, and judge the arms on held-out documents.

All arms have the same number of tokens: the selections themselves, random documents, the documents of the highest
quality, and random documents of a selection's lengths: more documents for the same tokens teach more words, which is
no merit of the choice.

A loss is in bits per byte of held-out documents. Two things make the difference of two arms uncertain. The held-out
documents are a sample: their paired differences are summed by clusters (pages of one host) and vary between these. And
an arm is one draw of documents: how much losses vary from draw to draw is measured on arms that are drawn again and
again, random documents and random documents of a selection's lengths, pooled over these.
"""

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from fineweb_mask.models.errors import DataError
from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.models.witness.kneser_ney import KneserNey
from fineweb_mask.models.witness.tokens import PackedTokens

RANDOM, TOP_QUALITY = "random", "top_quality"
NO_DIFFERENCE = "no difference seen"
DRAWS = 8
"""Of random documents; how much they differ is the noise of every arm."""
LENGTH_DRAWS = 2
"""Of random documents of an arm's lengths."""
SAME_LENGTH = 0.05
"""An arm with as many documents for its tokens as random ones, within 5%, needs no control of its lengths."""
BINS_PER_DOUBLING = 8
"""Documents whose lengths differ by less than 9% are of one length."""
FEWEST_OVER = 1.5
"""Times an arm's tokens that the pool must have, so that random documents are not the same each time."""
FEWEST_TOKENS = 10_000
"""Of an arm, below which a model of n-grams has read nothing."""
LEVEL = 0.95
NORMAL = 1e6  # degrees of freedom with which Student's t is the normal distribution
UNPREDICTABLE = 2.0
"""A held-out document is left out if random arms lose more on it, per byte, than so many times their median: encoded
binaries and the like, which no text predicts and a few of which would decide the mean."""


class HeldOut(NamedTuple):
    """Held-out documents, n; every byte counts as much as another."""

    tokens: PackedTokens
    sizes: NDArray[np.integer[Any]]  # (n,), bytes
    clusters: NDArray[np.integer[Any]]  # (n,): documents of one cluster are alike

    def take(self, rows: NDArray[np.integer]) -> Self:
        """Return some of the documents."""
        return type(self)(self.tokens.take(rows), self.sizes[rows], self.clusters[rows])

    def bits(self, model: KneserNey) -> NDArray[np.float64]:
        """Return the loss of a model on every document in bits, (n,)."""
        total = np.concatenate([[0.0], np.cumsum(-model.log2_probabilities(*self.tokens))])
        return np.asarray(np.diff(total[self.tokens.ends], prepend=0.0), dtype=np.float64)


def witness(
    pool: PackedTokens,
    selections: Mapping[str, NDArray[np.integer]],
    held_out: Mapping[str, HeldOut],
    *,
    vocabulary: int,
    quality: NDArray[np.floating] | None = None,
    most_tokens: int = 1_000_000,
    seed: int = 0,
) -> dict[str, Any]:
    """Train a model on every arm and judge the arms on every held-out set.

    Returned as JSON values: the `tokens` of every arm, by arm the mean number of `documents`, by arm the one of random
    documents of its `lengths`, and by held-out set, in `sets`, what `judge` says.

    Parameters
    ----------
    pool
        All n documents that may be selected, each ended by the end token; none is held out, or too much like one.
    selections
        By name, the places of selected documents in the pool. One that is called `random` is not read: the witness
        draws its own. The first is compared with the others.
    held_out
        By name, documents that no arm has.
    vocabulary
        Number of different tokens.
    quality
        (n,) adds the arm `top_quality`.
    most_tokens
        Of an arm. The smallest selection may have fewer, which all arms then have; larger ones are sampled.
    seed
        Seed of all draws.

    Raises
    ------
    DataError
        If a selection has fewer than `FEWEST_TOKENS` tokens, or the pool hardly more than the selections.
    """
    lengths, tokens, draws = _draws(pool.lengths, selections, quality, most_tokens, seed)
    jobs = [(name, documents) for name, several in draws.items() for documents in several]

    def losses(documents: NDArray[np.integer]) -> dict[str, NDArray[np.float64]]:
        raise_if_stopped()
        model = KneserNey(*pool.take(documents, tokens), vocabulary=vocabulary)
        return {name: texts.bits(model) for name, texts in held_out.items()}

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        found = [threads.submit(losses, documents) for _, documents in jobs]
        try:
            measured = [one.result() for one in track("models of n-grams", found)]
        finally:
            threads.shutdown(cancel_futures=True)
    sets = {}
    for name, texts in held_out.items():
        bits = {
            arm: np.stack([one[name] for (own, _), one in zip(jobs, measured, strict=True) if own == arm])
            for arm in draws
        }
        sets[name] = judge(bits, texts, lengths)
    documents = {name: float(np.mean([len(one) for one in several])) for name, several in draws.items()}
    return {"tokens": tokens, "documents": documents, "lengths": lengths, "sets": sets}


def check_tokens(arm: int, pool: int, name: str) -> None:
    """Check that arms of so many tokens can be compared, `name` the smallest, with random ones from the pool.

    Raises
    ------
    DataError
        If something could not be learned or compared.
    """
    if arm < FEWEST_TOKENS:
        raise DataError(
            f"{name} has {arm:,} tokens, from which nothing is learned that could be compared: at least "
            f"{FEWEST_TOKENS:,} are needed; select more documents"
        )
    if pool < FEWEST_OVER * arm:
        raise DataError(
            f"each selection is compared with random documents of {arm:,} tokens, and the corpus must have half as "
            f"many again, it has {pool:,} in all: select a smaller share"
        )


def _draws(
    sizes: NDArray[np.integer],  # (n,), tokens
    selections: Mapping[str, NDArray[np.integer]],
    quality: NDArray[np.floating] | None,
    most_tokens: int,
    seed: int,
) -> tuple[dict[str, str], int, dict[str, list[NDArray[np.integer]]]]:
    """Return by arm the control of its lengths, the tokens of every arm, and by arm the documents of its draws."""
    chosen = {name: rows for name, rows in selections.items() if name != RANDOM}
    held = {name: int(sizes[rows].sum()) for name, rows in chosen.items()}
    smallest, pool = min(held, key=lambda name: held[name], default="the corpus"), int(sizes.sum())
    tokens = min(most_tokens, held.get(smallest, pool // 2))
    check_tokens(tokens, pool, smallest)

    def cut(order: NDArray[np.integer]) -> NDArray[np.integer]:
        return order[: int(np.searchsorted(np.cumsum(sizes[order]), tokens)) + 1]

    draws = {name: [cut(np.random.default_rng(seed).permutation(rows))] for name, rows in chosen.items()}
    if quality is not None and TOP_QUALITY not in chosen:
        draws[TOP_QUALITY] = [cut(np.argsort(-quality, kind="stable"))]
    several = [cut(np.random.default_rng(seed + draw).permutation(len(sizes))) for draw in range(DRAWS)]
    usual, lengths = np.mean([len(one) for one in several]), dict[str, str]()
    for name, [own] in list(draws.items()):
        if abs(len(own) / usual - 1) > SAME_LENGTH:
            lengths[name] = f"random of the lengths of {name}"
            seeds = range(seed + DRAWS, seed + DRAWS + LENGTH_DRAWS)
            draws[lengths[name]] = [cut(equal_lengths_first(sizes, sizes[own], one)) for one in seeds]
    return lengths, tokens, {RANDOM: several, **draws}


def equal_lengths_first(lengths: NDArray[np.integer], wanted: NDArray[np.integer], seed: int) -> NDArray[np.int64]:
    """Return all n documents in random order, but as many of every length, within 9%, as are wanted (k,) first.

    >>> lengths = np.array([100, 900, 101, 3000, 99])
    >>> sorted((lengths[equal_lengths_first(lengths, np.array([905, 98]), seed=0)[:2]] // 90).tolist())
    [1, 10]
    """
    order = np.random.default_rng(seed).permutation(len(lengths))
    bins, of_wanted = (np.round(BINS_PER_DOUBLING * np.log2(one)).astype(np.int64) for one in (lengths, wanted))
    need = np.bincount(of_wanted, minlength=int(bins.max(initial=0)) + 1)
    by_bin = np.argsort(bins[order], kind="stable")
    count = np.bincount(bins)
    rank = np.empty(len(order), dtype=np.int64)
    rank[by_bin] = np.arange(len(order)) - np.repeat(np.cumsum(count) - count, count)
    is_first = rank < need[bins[order]]
    return np.concatenate([order[is_first], order[~is_first]])


def judge(bits: Mapping[str, NDArray[np.floating]], held_out: HeldOut, lengths: Mapping[str, str]) -> dict[str, Any]:
    """Compare arms on one held-out set.

    Returned are how many `documents` count and are `left_out`, by arm the `losses` of all draws, and by arm and other
    arm, in `against`, how much better the one predicts than the other, as a share of random documents' loss: `gain`,
    `low` and `high`, the ends of an interval that holds the truth for all arms in 95% of such experiments, and
    `verdict`, what may be said. The others are random documents, random ones of its lengths, and for the first arm all
    that are no controls.

    Parameters
    ----------
    bits
        Loss of every held-out document under the model of every draw of an arm: (draws, n) in bits, by arm. `random` is
        one of two draws or more.
    held_out
        The n documents.
    lengths
        For an arm, the one of random documents of its lengths.

    Raises
    ------
    DataError
        If no document is left to average over.
    """
    sizes = held_out.sizes
    counts = sizes > 0
    per_byte = bits[RANDOM].mean(0) / np.maximum(sizes, 1)
    counts &= per_byte <= UNPREDICTABLE * np.median(per_byte[counts]) if counts.any() else False
    if not counts.any():
        raise DataError(f"of the {len(counts):,} held-out documents, at least one must have text")
    kept, total = {name: of_arm[:, counts] for name, of_arm in bits.items()}, sizes[counts].sum()
    losses = {name: of_arm.sum(1) / total for name, of_arm in kept.items()}
    arms = [name for name in bits if name not in {RANDOM, *lengths.values()}]
    freedom = sum(len(draws) - 1 for draws in losses.values())
    variance = sum(((draws - draws.mean()) ** 2).sum() for draws in losses.values()) / freedom

    def effect(arm: str, other: str) -> dict[str, Any]:
        of_draws = np.sqrt(variance * (1 / len(kept[arm]) + 1 / len(kept[other])))
        difference = kept[other].mean(0) - kept[arm].mean(0)
        of_documents = standard_error(difference, sizes[counts], held_out.clusters[counts])
        half = half_width(float(of_draws), freedom, of_documents, len(arms))
        mean, base = float(difference.sum() / total), float(losses[RANDOM].mean())
        gain, low, high = ((mean + side * half) / base for side in (0, -1, 1))
        verdict = NO_DIFFERENCE if low <= 0 <= high else "better" if gain > 0 else "worse"
        return {"gain": gain, "low": low, "high": high, "verdict": verdict}

    against = {
        arm: {other: effect(arm, other) for other in (RANDOM, *([lengths[arm]] if arm in lengths else []))}
        for arm in arms
    }
    for arm in arms[:1]:
        against[arm] |= {other: effect(arm, other) for other in arms[1:]}
    return {
        "documents": int(counts.sum()),
        "left_out": int((~counts).sum()),
        "losses": {name: loss.tolist() for name, loss in losses.items()},
        "against": against,
    }


def standard_error(
    difference: NDArray[np.floating],  # (n,) in bits
    sizes: NDArray[np.integer],  # (n,) in bytes
    clusters: NDArray[np.integer],  # (n,)
) -> float:
    """Return the standard error of a mean difference in bits per byte, by linearisation.

    Source: Cochran, "Sampling techniques" (1977), sections 6.3 and 11.8: the ratio estimator, by clusters.
    """
    total = sizes.sum()
    sums = np.bincount(clusters, (difference - difference.sum() / total * sizes) / total)
    sums = sums[np.bincount(clusters) > 0]
    return float(np.sqrt((sums**2).sum() * len(sums) / max(len(sums) - 1, 1)))


def half_width(of_draws: float, freedom: int, of_documents: float, comparisons: int) -> float:
    """Return half the width of intervals that hold the truth for all comparisons in 95% of experiments.

    They are of Student's t, for two independent errors and with Bonferroni's correction. Source: Welch 1947, "The
    generalization of Student's problem": the degrees of freedom of a sum of two variances, of which that of documents
    has many.

    >>> round(half_width(0.0, 7, 1.0, 1), 2), round(half_width(1.0, 7, 0.0, 1), 2)
    (1.96, 2.36)
    """
    from scipy import special

    error = float(np.hypot(of_draws, of_documents))
    free = min(freedom * (error / of_draws) ** 4, NORMAL) if of_draws else NORMAL
    return -float(special.stdtrit(free, (1 - LEVEL) / 2 / comparisons)) * error
