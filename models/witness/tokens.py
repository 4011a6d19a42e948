"""Turn documents into token ids, and put the tokens of many documents together."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

END = "<|endoftext|>"
"""Stands between documents."""
TEXTS_AT_ONCE = 512


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
    def of(cls, texts: Iterable[str], tokenizer: "Tokenizer") -> Self:
        """Tokenise documents, each with the end token after it; a text that looks like that token is read as text."""
        end = end_of(tokenizer)
        found = encoded_texts(texts, tokenizer, offsets=False)
        return cls.joined(([*encoded.ids, end] for encoded in found), tokenizer)

    @classmethod
    def joined(cls, documents: Iterable[list[int]], tokenizer: "Tokenizer") -> Self:
        """Put the token ids of documents one after the other."""
        dtype: type[np.unsignedinteger] = np.uint16 if tokenizer.get_vocab_size() <= 2**16 else np.uint32
        parts = [np.array(ids, dtype=dtype) for ids in documents]
        return cls(
            np.concatenate([np.empty(0, dtype=dtype), *parts]), np.cumsum([len(part) for part in parts], dtype=np.int64)
        )

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


def measured_starts(
    texts: Sequence[str], tokenizer: "Tokenizer", tokens: int
) -> tuple[PackedTokens, NDArray[np.int64]]:
    """Return the first tokens of every document, without an end token, and the bytes that they stand for, (documents,).

    Parameters
    ----------
    texts
        The documents; an empty one has no tokens.
    tokenizer
        A byte-level tokenizer.
    tokens
        Most tokens of a document.
    """
    sizes = np.zeros(len(texts), dtype=np.int64)
    starts: list[list[int]] = []
    for document, (text, encoded) in enumerate(zip(texts, encoded_texts(texts, tokenizer), strict=True)):
        ids = encoded.ids[:tokens]
        measured = text if len(ids) == len(encoded.ids) else text[: encoded.offsets[len(ids) - 1][1]]
        sizes[document] = len(measured.encode())
        starts.append(ids)
    return PackedTokens.joined(starts, tokenizer), sizes


def end_of(tokenizer: "Tokenizer") -> int:
    """Return the id of the end token."""
    end = tokenizer.token_to_id(END)
    assert end is not None, "train_tokenizer adds it"  # noqa: S101
    return end


def encoded_texts(texts: Iterable[str], tokenizer: "Tokenizer", *, offsets: bool = True) -> Iterator["Encoding"]:
    """Tokenise texts in batches; one that holds `<|endoftext|>` does not end there. Without offsets it is faster."""
    tokenizer.encode_special_tokens = True
    encode = tokenizer.encode_batch if offsets else tokenizer.encode_batch_fast
    remaining = iter(texts)
    while batch := list(islice(remaining, TEXTS_AT_ONCE)):
        yield from encode(batch, add_special_tokens=False)
