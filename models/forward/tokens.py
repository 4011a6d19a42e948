"""Tokenise texts completely, or only their first tokens without reading the rest."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Self
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer
from tokenizers.models import BPE

CHARS_PER_TOKEN = 8
"""Characters read first, per wanted token; English web text has 4 to 5."""
GROWTH = 8  # factor by which the characters grow if they hold too few tokens
MOST_CHARS_PER_TOKEN = 512
"""Maximum characters read per wanted token. Words and white space of thousands of characters are not text."""
LOOK_AHEAD = 16  # tokens after the wanted ones that cutting the text may have changed
CALL_CHARS = 1 << 20  # maximum characters per call of the tokenizer, which holds a hundred bytes per token meanwhile


@dataclass(frozen=True, slots=True)
class TokenIds:
    """Token ids of n texts, concatenated."""

    ids: NDArray[np.int32]  # (total,)
    lengths: NDArray[np.int64]  # (n,) number of tokens

    @classmethod
    def of(cls, texts: Sequence[Sequence[int]]) -> Self:
        """Concatenate the token ids of each text."""
        lengths = np.fromiter((len(ids) for ids in texts), np.int64, len(texts))
        return cls(np.fromiter(chain.from_iterable(texts), np.int32, int(lengths.sum())), lengths)

    @property
    def starts(self) -> NDArray[np.int64]:
        """Index of each text's first token in `ids`, (n,)."""
        return np.cumsum(self.lengths) - self.lengths

    def tolist(self) -> list[list[int]]:
        """Return one list of ids per text."""
        return [ids.tolist() for ids in np.split(self.ids, np.cumsum(self.lengths)[:-1])] if len(self.lengths) else []


def read_as_text(tokenizer: Tokenizer, special: Sequence[str] = ()) -> None:
    """Have a tokenizer read what looks like a special token as text: a page that spells `</s>` does not end there.

    datatrove and transformers find special tokens in texts, so that of such a text they have other tokens. Added tokens
    that are not special, nor among `special`, are found as the tokenizer defines. Where a model knows a special token
    as a word, as Unigram does, the word gets a name that no text holds; the tokenizer must not be saved afterwards.
    """
    tokenizer.add_special_tokens(list(special))
    tokenizer.encode_special_tokens = True
    model, names = tokenizer.model, dict[str, str]()
    for number, token in tokenizer.get_added_tokens_decoder().items():
        is_word = token.special and len(token.content) > 1 and model.token_to_id(token.content) == number
        if is_word and (not isinstance(model, BPE) or number in [part.id for part in model.tokenize(token.content)]):
            names[token.content] = f"{token.content} {uuid4()}"
    if not names:
        return
    content = json.loads(tokenizer.to_str()) | {"added_tokens": [], "post_processor": None}
    changed = content["model"]
    words = changed["vocab"].items() if isinstance(changed["vocab"], dict) else changed["vocab"]
    renamed = [(names.get(word, word), number) for word, number in words]
    changed["vocab"] = dict(renamed) if isinstance(changed["vocab"], dict) else renamed
    if "merges" in changed:
        changed["merges"] = [pair for pair in changed["merges"] if names.keys().isdisjoint((*pair, "".join(pair)))]
    if "unk_token" in changed:
        changed["unk_token"] = names.get(changed["unk_token"], changed["unk_token"])
    tokenizer.model = Tokenizer.from_str(json.dumps(content)).model


def without_cache(tokenizer: Tokenizer) -> None:
    """Have a tokenizer merge the parts of a word each time it is seen; models other than BPE are left alone.

    The library's cache of words is kept for each thread and never freed, even if the tokenizer is: megabytes for every
    tokenizer that a process has used.
    """
    model = json.loads(tokenizer.to_str())["model"]
    if model.pop("type") == "BPE":
        pairs = (pair.split(" ") if isinstance(pair, str) else pair for pair in model.pop("merges"))
        merges = [(first, second) for first, second in pairs]
        options = {name: value for name, value in model.items() if value is not None}
        tokenizer.model = BPE(**options, merges=merges, cache_capacity=0)


def first_tokens(
    tokenizer: Tokenizer, texts: Sequence[str], max_tokens: int, *, special_tokens: bool = True
) -> TokenIds:
    """Return the first `max_tokens` token ids of each text.

    The result is that of tokenising the whole text and truncating it. Only the start of a long text is read: until the
    last wanted token is in an earlier word than the last token read, or up to `MOST_CHARS_PER_TOKEN` characters per
    token. A lone surrogate is read as "?". The tokenizer must have no truncation and no padding, and split a text into
    words from left to right. `max_tokens` includes special tokens such as [CLS], if these are added.
    """
    before, after = special_ids(tokenizer) if special_tokens else ([], [])
    wanted = max(0, max_tokens - len(before) - len(after))
    found: dict[int, list[int]] = {}
    pending = list(range(len(texts)))
    chars, most_chars = CHARS_PER_TOKEN * max_tokens, MOST_CHARS_PER_TOKEN * max_tokens
    while pending:
        starts = [_encodable(texts[index][:chars]) for index in pending]
        encodings = tokenizer.encode_batch(starts, add_special_tokens=False)
        for index, encoding in zip(pending, encodings, strict=True):
            if chars >= min(len(texts[index]), most_chars) or _is_settled(encoding, wanted):
                found[index] = [*before, *encoding.ids[:wanted], *after]
        pending = [index for index in pending if index not in found]
        chars *= GROWTH
    return TokenIds.of([found[index] for index in range(len(texts))])


def special_ids(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Return the ids of the special tokens that a tokenizer adds before a text, and after it."""
    text = tokenizer.encode("a", add_special_tokens=False)
    alone, whole = text.ids, tokenizer.encode("a").ids
    before = next(start for start in range(len(whole) + 1) if whole[start : start + len(alone)] == alone)
    return whole[:before], whole[before + len(alone) :]


def all_tokens(tokenizer: Tokenizer, texts: Sequence[str]) -> TokenIds:
    """Return all token ids of each text, without special tokens.

    A lone surrogate is read as "?". The tokenizer must have no truncation and no padding.
    """
    parts = [TokenIds.of([])]
    for call in in_batches(texts, CALL_CHARS):
        encodings = tokenizer.encode_batch_fast([*map(_encodable, call)], add_special_tokens=False)
        parts.append(TokenIds.of([encoding.ids for encoding in encodings]))
    ids, lengths = (np.concatenate([getattr(part, name) for part in parts]) for name in ("ids", "lengths"))
    return TokenIds(ids, lengths)


def in_batches(texts: Iterable[str], characters: int, most: int | None = None) -> Iterator[list[str]]:
    """Yield texts in batches of at most so many characters, or of a single longer text, and of at most `most` texts."""
    batch: list[str] = []
    held = 0
    for text in texts:
        if batch and (len(batch) == most or held + len(text) > characters):
            yield batch
            batch, held = [], 0
        batch.append(text)
        held += len(text)
    if batch:
        yield batch


def _encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _is_settled(encoding: Encoding, wanted: int) -> bool:
    """Return whether reading more text cannot change the first `wanted` tokens."""
    read = len(encoding)
    if read < wanted + LOOK_AHEAD:
        return False
    return wanted == 0 or encoding.token_to_word(wanted - 1) != encoding.token_to_word(read - 1)
