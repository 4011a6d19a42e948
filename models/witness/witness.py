"""Train a language model of n-grams on every arm of a comparison, and judge the arms on held-out documents.

All arms have the same number of tokens: the selections themselves, random documents, the documents of the highest
quality, and random documents of a selection's lengths: more documents for the same tokens teach more words, which is
no merit of the choice.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from fineweb_mask.models.errors import DataError
from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.witness.arms import documents_of_equal_lengths, random_documents
from fineweb_mask.models.witness.effects import HeldOut, Judged, judge
from fineweb_mask.models.witness.kneser_ney import KneserNey
from fineweb_mask.models.witness.tokens import PackedTokens

Item = TypeVar("Item")
Result = TypeVar("Result")
RANDOM, TOP_QUALITY = "random", "top_quality"
DRAWS = 8
"""Of random documents; how much they differ is the noise of every arm."""
LENGTH_DRAWS = 2
"""Of random documents of an arm's lengths."""
SAME_LENGTH = 0.05
"""An arm with as many documents for its tokens as random ones, within 5%, needs no control of its lengths."""
FEWEST_OVER = 1.5
"""Times an arm's tokens that the pool must have, so that random documents are not the same each time."""
FEWEST_TOKENS = 10_000
"""Of an arm, below which a model of n-grams has read nothing."""


class HeldOutTexts(NamedTuple):
    """Held-out documents."""

    tokens: PackedTokens
    sample: HeldOut

    def take(self, rows: NDArray[np.integer]) -> "HeldOutTexts":
        """Return some of the held-out documents."""
        return HeldOutTexts(self.tokens.take(rows), self.sample.take(rows))

    def loss(self, model: KneserNey) -> float:
        """Return the mean loss of a model on the documents, in bits per byte."""
        return float(self.sample.losses(bits_of(model, self.tokens)))


class Witness(NamedTuple):
    """What all arms taught."""

    tokens: int  # of every arm
    documents: dict[str, float]  # by arm, the mean over its draws
    sets: dict[str, Judged]  # by held-out set
    lengths: dict[str, str]  # by arm, that of random documents of its lengths


def witness(
    pool: PackedTokens,
    selections: Mapping[str, NDArray[np.integer] | PackedTokens],
    held_out: Mapping[str, HeldOutTexts],
    *,
    vocabulary: int,
    quality: NDArray[np.floating] | None = None,
    most_tokens: int = 1_000_000,
    best: str | None = None,
    seed: int = 0,
) -> Witness:
    """Train a model on every arm and judge the arms on every held-out set.

    Parameters
    ----------
    pool
        All n documents that may be selected, each ended by the end token; none is held out, or too much like one.
    selections
        By name, the places of selected documents in the pool, or the tokens of documents from elsewhere. One that is
        called `random` is not read: the witness draws its own.
    held_out
        By name, documents that no arm has.
    vocabulary
        Number of different tokens.
    quality
        (n,) adds the arm `top_quality`.
    most_tokens
        Of an arm. The smallest selection may have fewer, which all arms then have; larger ones are sampled.
    best
        A selection that the others are compared with, too.
    seed
        Seed of all draws.

    Raises
    ------
    DataError
        If a selection has fewer than `FEWEST_TOKENS` tokens, or the pool hardly more than the selections.
    """
    taken = {name: pool.take(one) if isinstance(one, np.ndarray) else one for name, one in selections.items()}
    taken.pop(RANDOM, None)
    arms = _Arms(pool, taken, most_tokens, seed)
    arms.add_selections(taken, quality)
    jobs = [(name, tokens) for name, draws in arms.draws.items() for tokens in draws]

    def losses(job: tuple[str, PackedTokens]) -> dict[str, NDArray[np.float64]]:
        model = KneserNey(*job[1], vocabulary=vocabulary)
        return {name: bits_of(model, texts.tokens) for name, texts in held_out.items()}

    measured = in_threads("models of n-grams", losses, jobs)

    def judged(of_set: str) -> Judged:
        bits = {
            name: np.stack([one[of_set] for (arm, _), one in zip(jobs, measured, strict=True) if arm == name])
            for name in arms.draws
        }
        return judge(bits, held_out[of_set].sample, random=RANDOM, lengths=arms.lengths, best=best)

    return Witness(
        tokens=arms.tokens,
        documents={name: float(np.mean([len(draw.ends) for draw in draws])) for name, draws in arms.draws.items()},
        sets={name: judged(name) for name in held_out},
        lengths=arms.lengths,
    )


def in_threads(what: str, work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Return the results of some work in the order of the items, several at once; if stopped, no more is begun."""
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        found = [threads.submit(work, item) for item in items]
        try:
            return [one.result() for one in track(what, found)]
        finally:
            threads.shutdown(cancel_futures=True)


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


class _Arms:
    """The draws of every arm, of equally many tokens."""

    def __init__(self, pool: PackedTokens, selections: Mapping[str, PackedTokens], most_tokens: int, seed: int) -> None:
        self.draws: dict[str, list[PackedTokens]] = {}
        self.lengths: dict[str, str] = {}
        self._pool, self._of_pool, self._seed = pool, pool.lengths, seed
        held = {name: len(one.ids) for name, one in selections.items()}
        smallest = min(held, key=lambda name: held[name], default="the corpus")
        most = held.get(smallest, int(self._of_pool.sum()) // 2)
        self.tokens = min(most_tokens, most)
        check_tokens(self.tokens, int(self._of_pool.sum()), smallest)
        self._random = [random_documents(self._of_pool, int(self._of_pool.sum()), seed + draw) for draw in range(DRAWS)]

    def add_selections(self, selections: Mapping[str, PackedTokens], quality: NDArray[np.floating] | None) -> None:
        """Add the selections, random documents, those of the highest quality, and random ones of equal lengths."""
        self.draws[RANDOM] = [self._pool.take(order, self.tokens) for order in self._random]
        for name, one in selections.items():
            order = np.random.default_rng(self._seed).permutation(len(one.ends))
            self.draws[name] = [one.take(order, self.tokens)]
        if quality is not None and TOP_QUALITY not in selections:
            self.draws[TOP_QUALITY] = [self._pool.take(np.argsort(-quality, kind="stable"), self.tokens)]
        usual = np.mean([len(draw.ends) for draw in self.draws[RANDOM]])
        for name in [name for name in self.draws if name != RANDOM]:
            [own] = self.draws[name]
            if abs(len(own.ends) / usual - 1) > SAME_LENGTH:
                self.lengths[name] = f"random of the lengths of {name}"
                self.draws[self.lengths[name]] = [self._of_lengths(own, draw) for draw in range(LENGTH_DRAWS)]

    def _of_lengths(self, arm: PackedTokens, draw: int) -> PackedTokens:
        """Return random documents of an arm's lengths; should they have too few tokens, with further ones."""
        seed = self._seed + DRAWS + draw
        order = documents_of_equal_lengths(self._of_pool, arm.lengths, seed)
        missing = self.tokens - int(self._of_pool[order].sum())
        if missing > 0:
            rest = np.setdiff1d(np.arange(len(self._of_pool)), order)
            mean = max(1, int(arm.lengths.mean()))
            more = np.resize(arm.lengths, missing // mean + 1)
            order = np.concatenate([order, rest[documents_of_equal_lengths(self._of_pool[rest], more, seed)], rest])
            order = order[np.sort(np.unique(order, return_index=True)[1])]
        return self._pool.take(order, self.tokens)


def bits_of(model: KneserNey, texts: PackedTokens) -> NDArray[np.float64]:
    """Return the loss of every document in bits, (documents,)."""
    total = np.concatenate([[0.0], np.cumsum(-model.log2_probabilities(*texts))])
    return np.asarray(np.diff(total[texts.ends], prepend=0.0), dtype=np.float64)
