"""Cut documents into the token windows that a transformer reads."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.forward.tokens import TokenIds, all_tokens, first_tokens


@dataclass(frozen=True, slots=True)
class Windows:
    """Token ids of m windows, special tokens included, and the document of each window."""

    tokens: TokenIds  # of m windows
    documents: NDArray[np.int64]  # (m,) index of the window's document, ascending
    weights: NDArray[np.float32]  # (m,) weight in the document's vector: the window's share of the document's tokens


def first_window(tokenizer: Tokenizer, texts: Sequence[str], max_tokens: int) -> Windows:
    """Return one window per text: its first `max_tokens` tokens."""
    tokens = first_tokens(tokenizer, texts, max_tokens)
    return Windows(tokens, np.arange(len(texts)), np.ones(len(texts), dtype=np.float32))


class WindowCutter:
    """Cut documents of any length into windows of at most `max_tokens` tokens, special tokens included.

    Each window starts with the prompt. The first window equals the result of `first_window`. The tokenizer must have no
    truncation and no padding. A prompt that leaves no room for a document raises SettingsError.
    """

    def __init__(self, tokenizer: Tokenizer, max_tokens: int, prompt: str) -> None:
        self._tokenizer = tokenizer
        self._prompt = prompt
        self._before, self._after = special_tokens(tokenizer)
        self._prompt_ids = all_tokens(tokenizer, [prompt]).ids
        self._first = max_tokens - len(self._before) - len(self._after)
        self._others = self._first - len(self._prompt_ids)
        if self._others < 1:
            raise SettingsError(
                f"the prompt and the special tokens take {max_tokens - self._others} of {max_tokens} tokens, "
                "which leaves none for a document: raise max_tokens or shorten the prompt"
            )

    def cut(self, texts: Sequence[str]) -> Windows:
        """Return the windows of all texts, document by document."""
        whole = all_tokens(self._tokenizer, [self._prompt + text for text in texts])
        windows: list[NDArray[np.int32]] = []
        documents: list[int] = []
        weights: list[float] = []
        for document, (start, length) in enumerate(zip(whole.starts.tolist(), whole.lengths.tolist(), strict=True)):
            ids = whole.ids[start : start + length]
            total = max(1, length - len(self._prompt_ids))
            first = ids[: self._first]
            windows.append(np.concatenate([self._before, first, self._after]))
            weights.append(max(1, len(first) - len(self._prompt_ids)) / total)
            documents.append(document)
            for begin in range(self._first, length, self._others):
                part = ids[begin : begin + self._others]
                windows.append(np.concatenate([self._before, self._prompt_ids, part, self._after]))
                weights.append(len(part) / total)
                documents.append(document)
        lengths = np.array([len(window) for window in windows], dtype=np.int64)
        ids = np.concatenate(windows) if windows else np.zeros(0, dtype=np.int32)
        return Windows(TokenIds(ids, lengths), np.array(documents, dtype=np.int64), np.array(weights, dtype=np.float32))


def special_tokens(tokenizer: Tokenizer) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the ids of the special tokens that a tokenizer adds before a text, (a,), and after it, (b,)."""
    text = tokenizer.encode("a", add_special_tokens=False)
    alone, whole = text.ids, tokenizer.encode("a").ids
    before = next(start for start in range(len(whole) + 1) if whole[start : start + len(alone)] == alone)
    return np.array(whole[:before], dtype=np.int32), np.array(whole[before + len(alone) :], dtype=np.int32)
