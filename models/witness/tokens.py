"""Turn documents into token ids, put those of many together, and find documents that share a run of tokens."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from fineweb_mask.models.dedup.ngrams import COMMON, run_hashes

if TYPE_CHECKING:
    from tokenizers import Tokenizer

END = "<|endoftext|>"
"""Stands between documents."""
TEXTS_AT_ONCE = 512
RUN = 20
"""Tokens of a shared run: about 13 words, which have hardly ever been written twice independently."""


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> "Tokenizer":
    """Train a byte-level BPE tokenizer of `vocabulary` tokens, which can represent any text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


class PackedTokens(NamedTuple):
    """The tokens of many documents, one after the other."""

    ids: NDArray[np.unsignedinteger]  # (tokens,)
    ends: NDArray[np.int64]  # (documents,): where each document's tokens end

    @classmethod
    def of(cls, texts: Sequence[str], tokenizer: "Tokenizer", *, end: bool = True) -> Self:
        """Tokenise documents, with the end token after each if `end`; one that spells that token does not end there."""
        dtype = np.uint16 if tokenizer.get_vocab_size() <= 2**16 else np.uint32
        after = [tokenizer.token_to_id(END)] if end else []
        parts = [np.array([*ids, *after], dtype=dtype) for ids in _encoded(texts, tokenizer)]
        ends = np.cumsum([len(part) for part in parts], dtype=np.int64)
        return cls(np.concatenate([np.empty(0, dtype=dtype), *parts]), ends)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of every document, (documents,)."""
        return np.diff(self.ends, prepend=0)

    def take(self, documents: NDArray[np.integer], tokens: int | None = None) -> Self:
        """Return these documents in this order, no more than `tokens` in all: the last document is cut.

        >>> packed = PackedTokens(np.arange(6, dtype=np.uint16), np.array([2, 3, 6]))
        >>> [part.tolist() for part in packed.take(np.array([2, 0]), 4)]
        [[3, 4, 5, 0], [3, 4]]
        """
        lengths = self.lengths[documents]
        ends = np.cumsum(lengths, dtype=np.int64)
        if tokens is not None and len(ends) and ends[-1] > tokens:
            last = int(np.searchsorted(ends, tokens))
            documents, ends = documents[: last + 1], ends[: last + 1].copy()
            ends[last] = tokens
            lengths = np.diff(ends, prepend=0)
        first = (self.ends - self.lengths)[documents] - (ends - lengths)
        return type(self)(self.ids[np.arange(ends[-1] if len(ends) else 0) + np.repeat(first, lengths)], ends)


def _encoded(texts: Iterable[str], tokenizer: "Tokenizer") -> Iterator[list[int]]:
    tokenizer.encode_special_tokens = True
    remaining = iter(texts)
    while batch := list(islice(remaining, TEXTS_AT_ONCE)):
        yield from (encoded.ids for encoded in tokenizer.encode_batch_fast(batch, add_special_tokens=False))


def sharing_documents(pool: PackedTokens, held_out: PackedTokens, run: int = RUN) -> NDArray[np.bool_]:
    """Return which documents of the pool share a run of tokens with a held-out one: (documents,) bool.

    A run that more than 10 documents of the pool have is a common phrase and does not count.

    >>> pool = PackedTokens(np.array([1, 2, 3, 4, 9, 9]), np.array([4, 6]))
    >>> sharing_documents(pool, PackedTokens(np.array([2, 3, 4]), np.array([3])), run=3).tolist()
    [True, False]
    """
    (runs, document), (known, _) = _runs(pool, run), _runs(held_out, run)
    shared = np.flatnonzero(np.isin(runs, known))
    of_run = np.unique(runs[shared], return_inverse=True)[1]
    pairs = np.unique(of_run * len(pool.ends) + document[shared])  # each run once for a document
    of_run, of_document = pairs // len(pool.ends), pairs % len(pool.ends)
    is_rare = np.bincount(of_run) <= COMMON
    found = np.zeros(len(pool.ends), dtype=bool)
    found[of_document[is_rare[of_run]]] = True
    return found


def _runs(packed: PackedTokens, run: int) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return the hash of every run inside a document, (m,), and the document, (m,)."""
    hashes = run_hashes(packed.ids, run)
    document = np.repeat(np.arange(len(packed.ends)), packed.lengths)
    inside = document[: len(hashes)] == document[run - 1 : run - 1 + len(hashes)]
    return hashes[inside], document[: len(hashes)][inside]
