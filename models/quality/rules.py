"""Score texts by published rules of thumb for prose: whether it is prose, not whether it is good.

The filters of Gopher (arXiv 2112.11446), C4 (arXiv 1910.10683) and FineWeb (arXiv 2406.17557) drop a text beyond a
limit. Here every rule gives a mark, 0 at that limit and 1 where prose is, and the score is the mean of the marks. The
filters themselves are in `models/filters.py`: they need datatrove, and say only yes or no. All texts of a batch are one
array of bytes.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

VERSION = "rules 1"
"""Of the marks, in the keys of scores: raise it when a text would get another score."""
CHARACTERS = 10_000
"""Read of each text."""
AT_ONCE = 500
"""Texts that are one array of bytes."""
STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")
"""Gopher's, at most four letters long."""
LETTERS = 4
RUN = 5
"""Words in a row that are not to be repeated (Gopher)."""
SHORT = 30
"""Characters below which a line is short (FineWeb)."""

Floats = NDArray[np.float64]


def _table(characters: str) -> NDArray[np.bool_]:
    """Return which bytes are among ASCII characters, (256,)."""
    found = np.zeros(256, dtype=bool)
    found[list(characters.encode())] = True
    return found


SPACE = _table(" \t\n\v\f\r")
LETTER = _table("abcdefghijklmnopqrstuvwxyz") | (np.arange(256) > 127)  # after `LOWER`; any letter beyond ASCII
LOWER = np.arange(256, dtype=np.uint8)
LOWER[65:91] += 32
ENDS = _table('.!?"')
ENDS[0x9D] = True  # the last byte of a closing quotation mark
CODES = np.array([int.from_bytes(word.encode().ljust(LETTERS, b"\0"), "little") for word in STOP_WORDS], np.uint32)
_DICE = np.random.default_rng(0)
BYTE, PLACE = (_DICE.integers(1, 2**63, 256, dtype=np.uint64) | np.uint64(1) for _ in range(2))
BASE = np.uint64(0x9E3779B97F4A7C15)
POWERS = np.cumprod(np.full(RUN, BASE))
"""Odd numbers that words, lines and runs of words are hashed with, modulo 2**64."""


class RulesScorer:
    r"""Score texts by rules.

    Examples
    --------
    >>> prose = "The sea is calm today, and the tide that we have waited for is full. It is time to go to the boats."
    >>> scores = RulesScorer().score([prose, "Home | Shop | Login\nHome | Shop | Login\n# # #", ""])
    >>> [round(float(score), 2) for score in scores]
    [0.87, 0.15, 0.0]
    """

    column = "text"
    reads_arrow = True

    def score(self, values: Sequence[str] | pa.Array) -> NDArray[np.float32]:
        """Return the mean of the marks, from 0 to 1, of n texts: (n,)."""
        texts = values if isinstance(values, pa.Array) else pa.array(values, pa.large_string())
        parts = [np.mean([*marks(texts.slice(start, AT_ONCE)).values()], 0) for start in range(0, len(texts), AT_ONCE)]
        return np.concatenate([np.zeros(0), *parts]).astype(np.float32)


def marks(texts: pa.Array) -> dict[str, Floats]:
    """Return what each rule says of n texts, (n,) from 0 to 1, by its name; of a text without a word, 0.

    >>> {name: float(mark[0].round(2)) for name, mark in marks(pa.array(["Home of the brave: log in"])).items()}
    {'stop words': 1.0, 'line ends': 0.0, 'long lines': 0.0, 'repetition': 1.0, 'symbols': 1.0, 'word length': 0.22}
    """
    cut = pc.utf8_slice_codeunits(texts.cast(pa.large_string()), 0, CHARACTERS)
    words = _Words(cut)
    has_words = words.counts > 0
    found = {
        "stop words": _rising(words.mean(words.are_stop_words), 0, 0.15),
        "line ends": _rising(words.line_mean(words.line_ends, words.line_lengths), 0.12, 0.9),
        "long lines": _rising(-words.line_mean(words.line_lengths < SHORT), -0.67, 0),
        "repetition": np.minimum(_rising(-words.repeated_runs(), -0.15, 0), _rising(-words.repeated_lines(), -0.3, 0)),
        "symbols": np.minimum(
            _rising(words.mean(words.letters > 0), 0.8, 0.98), _rising(-_symbols(cut) / words.at_least_one, -0.1, 0)
        ),
        "word length": np.minimum(_rising(words.length(), 3, 4.5), _rising(-words.length(), -10, -6)),
    }
    return {name: np.where(has_words, mark, 0.0) for name, mark in found.items()}


def _rising(values: Floats, low: float, high: float) -> Floats:
    """Return where values lie between two, as a share of the way."""
    return np.clip((values - low) / (high - low), 0, 1)


def _symbols(texts: pa.Array) -> Floats:
    """Count the symbols that Gopher counts, and C4's braces, in n texts: (n,)."""
    counts = [pc.count_substring(texts, one).to_numpy(zero_copy_only=False) for one in ("#", "...", "…", "{")]
    total: Floats = np.sum(counts, 0, dtype=np.float64)
    return total


class _Words:
    """The words of n texts, w in all, which are runs without white space, and their lines; empty lines are left out."""

    def __init__(self, texts: pa.Array) -> None:
        newline, nothing = (pa.scalar(one, pa.large_string()) for one in ("\n", ""))
        joined = pc.binary_join_element_wise(texts, newline, nothing)  # every text ends a line
        offsets = np.frombuffer(joined.buffers()[1], np.int64)[joined.offset :][: len(joined) + 1]
        content = np.frombuffer(joined.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
        offsets = offsets - offsets[0]
        space = SPACE[content]
        edges = np.flatnonzero(np.diff(space, prepend=True))
        starts, ends = edges[::2], edges[1::2]
        self.n, lower = len(texts), LOWER[content]
        self.counts = np.diff(np.searchsorted(starts, offsets))
        self.at_least_one = np.maximum(self.counts, 1)
        self.text_of = np.repeat(np.arange(self.n), self.counts)
        self.letters = _sums(LETTER[lower], starts)
        self.lengths = ends - starts - _sums((content & 0xC0) == 0x80, starts)  # in characters
        self.are_stop_words = self._stop_words(lower, starts)
        skipped = int(starts[0]) if len(starts) else len(content)  # white space before the first word
        place = np.arange(skipped, len(content)) - np.repeat(starts, np.diff(starts, append=len(content)))
        hashed = np.where(space, np.uint64(0), BYTE[lower])[skipped:] * PLACE[np.minimum(place, 255)]
        self.hashes = _sums(hashed, starts - skipped)
        line = np.cumsum(content == ord("\n"))[starts]
        self.line_starts = np.flatnonzero(np.diff(line, prepend=-1))  # the first word of each line, (l,)
        lasts = np.append(self.line_starts, len(starts))[1:] - 1
        self.text_of_line = self.text_of[self.line_starts]
        self.line_lengths = ends[lasts] - starts[self.line_starts]  # in bytes
        self.line_ends = ENDS[content[ends[lasts] - 1]]

    def _stop_words(self, lower: NDArray[np.uint8], starts: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which words begin with their letters, and these are a stop word: (w,)."""
        padded = np.append(lower, np.zeros(LETTERS, np.uint8))
        codes, begins = np.zeros(len(starts), np.uint32), self.letters <= LETTERS
        for place in range(LETTERS):
            characters, counts = padded[starts + place], place < self.letters
            codes |= np.where(counts, characters, 0).astype(np.uint32) << np.uint32(8 * place)
            begins &= ~counts | LETTER[characters]
        return begins & np.isin(codes, CODES)

    def mean(self, values: NDArray[Any]) -> Floats:
        """Return the mean over the words of each text, (n,), of values of words, (w,)."""
        found: Floats = np.bincount(self.text_of, values, self.n) / self.at_least_one
        return found

    def length(self) -> Floats:
        """Return the mean length of the words with a letter, in characters: (n,)."""
        has_letter = self.letters > 0
        return self.mean(self.lengths * has_letter) / np.maximum(self.mean(has_letter), 1e-9)

    def line_mean(self, values: NDArray[Any], weights: NDArray[np.int64] | None = None) -> Floats:
        """Return the mean over the lines of each text, (n,), of values of lines, (l,)."""
        heavy = np.ones(len(values)) if weights is None else weights.astype(np.float64)
        total = np.bincount(self.text_of_line, heavy, self.n)
        return np.bincount(self.text_of_line, values * heavy, self.n) / np.maximum(total, 1)

    def repeated_runs(self) -> Floats:
        """Return which share of the runs of five words stood before in the text: (n,)."""
        if len(self.hashes) < RUN:
            return np.zeros(self.n)
        last = len(self.hashes) - RUN + 1
        runs = np.sum([self.hashes[place : last + place] * POWERS[place] for place in range(RUN)], 0)
        inside = self.text_of[RUN - 1 :] == self.text_of[:last]
        return self._repeated(runs[inside], self.text_of[:last][inside])

    def repeated_lines(self) -> Floats:
        """Return which share of the lines stood before in the text: (n,)."""
        place = np.arange(len(self.hashes)) - np.repeat(
            self.line_starts, np.diff(self.line_starts, append=len(self.hashes))
        )
        lines = _sums(self.hashes * BASE ** place.astype(np.uint64), self.line_starts)
        return self._repeated(lines, self.text_of_line)

    def _repeated(self, hashes: NDArray[np.uint64], text_of: NDArray[np.int64]) -> Floats:
        _, first = np.unique(hashes + text_of.astype(np.uint64) * BASE, return_index=True)
        total = np.bincount(text_of, minlength=self.n)
        return (total - np.bincount(text_of[first], minlength=self.n)) / np.maximum(total, 1)


def _sums(values: NDArray[Any], starts: NDArray[np.int64]) -> NDArray[Any]:
    """Add up values from each start to before the next: (w,)."""
    if not len(starts):
        return np.zeros(0, values.dtype)
    return np.add.reduceat(values, starts, dtype=np.int64 if values.dtype == bool else None)
