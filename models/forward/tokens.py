"""Texts as token ids: all of a text's, or the first of it, of which no more is read than they need."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray
    from tokenizers import Encoding, Tokenizer

CHARS_PER_TOKEN = 8
"""Characters read at first for each token wanted; English web text has 4 to 5."""
GROWTH = 8  # times as many characters are read where those gave too few tokens
MOST_CHARS_PER_TOKEN = 512
"""Characters read at most for each token wanted: words and blanks of thousands of characters are no text."""
LOOK_AHEAD = 16  # tokens beyond the last one wanted, that the end of what was read may have changed
PIECE_CHARS = 1 << 20
"""Characters tokenised as one text: the tokenizer takes a hundred bytes for each token of what it is given."""
LONGEST_WORD = 1_024  # characters looked through for the white space to cut at
LAST_BLANK = re.compile(r"\s(?=\S*\Z)")
CALL_CHARS = 1 << 24  # characters given to the tokenizer in one call


@dataclass(frozen=True, slots=True)
class TokenIds:
    """The token ids of texts, one text after the other."""

    ids: NDArray[np.int32]  # (total,)
    lengths: NDArray[np.int64]  # (n,): tokens of each text

    @classmethod
    def of(cls, texts: Sequence[Sequence[int]]) -> TokenIds:
        """Return the token ids of each text as one array."""
        lengths = np.fromiter((len(ids) for ids in texts), np.int64, len(texts))
        return cls(np.fromiter(chain.from_iterable(texts), np.int32, int(lengths.sum())), lengths)

    @property
    def starts(self) -> NDArray[np.int64]:
        """Where each text begins in `ids`, (n,)."""
        return np.cumsum(self.lengths) - self.lengths

    def tolist(self) -> list[list[int]]:
        """Return a list of ids for each text."""
        return [ids.tolist() for ids in np.split(self.ids, np.cumsum(self.lengths)[:-1])] if len(self.lengths) else []


def first_tokens(
    tokenizer: Tokenizer, texts: Sequence[str], max_tokens: int, *, special_tokens: bool = True
) -> TokenIds:
    """Return the token ids of each text, cut to `max_tokens`.

    The same as tokenising the whole text and cutting then, but of a text of megabytes only the start is read: as much
    as it takes for the last token wanted to lie in an earlier word than the last one read, or `MOST_CHARS_PER_TOKEN`
    characters for each token. A lone surrogate is read as "?".

    Parameters
    ----------
    tokenizer
        A tokenizer that neither cuts nor pads, and splits a text into words from left to right.
    texts
        Documents.
    max_tokens
        Most tokens per text, special ones included.
    special_tokens
        Whether the special tokens, such as [CLS], are added.
    """
    wanted = max_tokens - (tokenizer.num_special_tokens_to_add(is_pair=False) if special_tokens else 0)
    found: dict[int, list[int]] = {}
    pending = list(range(len(texts)))
    chars, most_chars = CHARS_PER_TOKEN * max_tokens, MOST_CHARS_PER_TOKEN * max_tokens
    while pending:
        starts = [_encodable(texts[index][:chars]) for index in pending]
        encodings = tokenizer.encode_batch(starts, add_special_tokens=False)
        for index, encoding in zip(pending, encodings, strict=True):
            if chars >= min(len(texts[index]), most_chars) or _is_settled(encoding, wanted):
                encoding.truncate(wanted)
                found[index] = (tokenizer.post_process(encoding) if special_tokens else encoding).ids
        pending = [index for index in pending if index not in found]
        chars *= GROWTH
    return TokenIds.of([found[index] for index in range(len(texts))])


def all_tokens(tokenizer: Tokenizer, texts: Sequence[str]) -> TokenIds:
    """Return all token ids of each text, without special tokens.

    A text of more than `PIECE_CHARS` characters is tokenised in pieces, cut before white space where there is some.
    A lone surrogate is read as "?".

    Parameters
    ----------
    tokenizer
        A tokenizer that neither cuts nor pads.
    texts
        Documents.
    """
    parts: list[TokenIds] = []
    owners: list[int] = []
    call: list[str] = []
    chars = 0
    for index, text in enumerate(texts):
        for piece in _pieces(text):
            if chars + len(piece) > CALL_CHARS and call:
                parts.append(_encode(tokenizer, call))
                call, chars = [], 0
            call.append(_encodable(piece))
            owners.append(index)
            chars += len(piece)
    parts.append(_encode(tokenizer, call))
    lengths = np.zeros(len(texts), dtype=np.int64)
    np.add.at(lengths, np.array(owners, dtype=np.int64), np.concatenate([part.lengths for part in parts]))
    return TokenIds(np.concatenate([part.ids for part in parts]), lengths)


def _encode(tokenizer: Tokenizer, texts: list[str]) -> TokenIds:
    encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    lengths = np.fromiter((len(encoding) for encoding in encodings), np.int64, len(encodings))
    ids = chain.from_iterable(encoding.ids for encoding in encodings)  # one list of Python integers at a time
    return TokenIds(np.fromiter(ids, np.int32, int(lengths.sum())), lengths)


def _pieces(text: str) -> Iterator[str]:
    start = 0
    while len(text) - start > PIECE_CHARS:
        end = start + PIECE_CHARS
        if blank := LAST_BLANK.search(text, end - LONGEST_WORD, end):
            end = blank.start()
        yield text[start:end]
        start = end
    yield text[start:]


def _encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _is_settled(encoding: Encoding, wanted: int) -> bool:
    """Return whether more text would leave the first `wanted` tokens as they are."""
    read = len(encoding)
    if read < wanted + LOOK_AHEAD:
        return False
    return wanted == 0 or encoding.token_to_word(wanted - 1) != encoding.token_to_word(read - 1)
