"""Split texts into words and sentences exactly as datatrove's filters do, but faster.

spaCy splits what stands between two spaces without regard to the rest of the text, and datatrove has it forget every
word after each text. Here what a word is split into is remembered, so that a text is a look-up for each of its words,
and an array of the words' numbers. From it is found at once that most texts break none of Gopher's rules.
"""

import re
from array import array
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]

MOST_REMEMBERED = 200_000
"""Different strings between spaces, of which text has ever more; then all are forgotten."""
RUNS = re.compile(r"\S+|\s+")
BREAKS_SPACY = "IS_ALPHA"
"""A string that spaCy cannot hold; datatrove leaves it out of a whole text that has it."""
IN_SENTENCE, PUNCTUATION, ENDS_SENTENCE = range(3)
"""What a token is to sentences: punctuation after an end belongs to the sentence before it."""
ENDS = ',;:?!)"'
"""Marks that spaCy's rules of English take off the end of any word that is not itself a rule."""
BASE = 0x9E3779B97F4A7C15
"""An odd number: its powers have inverses modulo 2**64."""
INVERSE = pow(BASE, -1, 2**64)


class RememberedWords:
    """The methods of a datatrove tokenizer that filters call, for a language whose words have spaces between them.

    Parameters
    ----------
    tokenizer
        A `SpaCyTokenizer` of datatrove.

    Examples
    --------
    >>> from datatrove.utils.word_tokenizers import load_word_tokenizer
    >>> words = RememberedWords(load_word_tokenizer("eng"))
    >>> words.word_tokenize("I can't say (yet).")
    ['I', 'ca', "n't", 'say', '(', 'yet', ')', '.']
    >>> words.span_tokenize("One. Two!")
    [(0, 4), (5, 9)]
    >>> len(words.numbers_of("I can't"))
    3
    """

    def __init__(self, tokenizer: Any) -> None:  # noqa: ANN401 - datatrove has no types
        from datatrove.utils.text import PUNCTUATION_SET

        self._of_texts = tokenizer.word_tokenize
        self._spans_of_texts = tokenizer.span_tokenize
        self._spacy = tokenizer.tokenizer
        self._sentence_ends = self._spacy.get_pipe("sentencizer").punct_chars
        self._symbols = PUNCTUATION_SET
        self._is_english = self._spacy.lang == "en"
        self._forget()

    def _forget(self) -> None:
        self._parts = dict[str, tuple[int, ...]]()
        self._numbers = dict[str, int]()
        self._words = list[str]()
        self._lengths, self._roles = array("q"), bytearray()
        self._no_symbols, self._letters = bytearray(), bytearray()
        self._last: tuple[str, IntArray] = "", np.zeros(0, np.int64)

    def numbers_of(self, text: str) -> IntArray | None:
        """Return the number of each word, int64; None for a text that only datatrove itself splits."""
        if BREAKS_SPACY in text:
            return None
        if self._last[0] != text:
            parts = self._remembered(text.split())
            self._last = text, np.fromiter(chain.from_iterable(map(self._parts.__getitem__, parts)), np.int64)
        return self._last[1]

    def word_tokenize(self, text: str) -> list[str]:
        """Return the words and punctuation marks of a text."""
        if (numbers := self.numbers_of(text)) is None:
            found: list[str] = self._of_texts(text)
            return found
        return list(map(self._words.__getitem__, numbers.tolist()))

    def lengths_of(self, numbers: IntArray) -> IntArray:
        """Return how many characters each word has, int64."""
        return np.frombuffer(self._lengths, np.int64)[numbers]

    def kinds_of(self, numbers: IntArray) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Return which words are not of symbols only, and which have a letter."""
        no_symbols, letters = (np.frombuffer(kind, np.bool_) for kind in (self._no_symbols, self._letters))
        return no_symbols[numbers], letters[numbers]

    def count_among(self, numbers: IntArray, words: Iterable[str]) -> int:
        """Return how many of these words are among those with the numbers."""
        return int(np.isin([self._numbers.get(word, -1) for word in words], numbers).sum())

    def span_tokenize(self, text: str) -> list[tuple[int, int]]:
        """Return where each sentence of a text begins and ends."""
        if BREAKS_SPACY in text:
            found: list[tuple[int, int]] = self._spans_of_texts(text)
            return found
        self._remembered(text.split())
        spans = list[tuple[int, int]]()
        begin, end, is_over = 0, 0, False
        for run in RUNS.finditer(text):
            part, start = run[0], run.start()
            if (numbers := self._parts.get(part)) is not None:
                tokens = [(self._lengths[number], self._roles[number]) for number in numbers]
            else:  # a space after a word is no token, other space is one
                skipped = int(start > 0 and part[0] == " ")
                start += skipped
                tokens = [(len(part) - skipped, IN_SENTENCE)] if len(part) > skipped else []
            for length, role in tokens:
                if is_over and role == IN_SENTENCE:
                    spans.append((begin, end))
                    begin, is_over = start, False
                elif role == ENDS_SENTENCE:
                    is_over = True
                start = end = start + length
        return [*spans, (begin, end)] if text else []

    def _remembered(self, parts: list[str]) -> list[str]:
        if len(self._parts) > MOST_REMEMBERED:
            self._forget()
        if unknown := set(parts).difference(self._parts):
            with self._spacy.memory_zone():
                for part in unknown:
                    self._parts[part] = self._split(part)
        return parts

    def _split(self, part: str) -> tuple[int, ...]:
        word, last = part[:-1], part[-1]
        if self._is_english and self._spacy.tokenizer.rules.keys().isdisjoint((part, word)):  # spaCy searches long
            if part.isascii() and part.isalpha():
                return (self._number(part, is_punctuation=False),)
            if word.isascii() and word.isalpha() and (last in ENDS or (last == "." and word[-1].islower())):
                return self._number(word, is_punctuation=False), self._number(last, is_punctuation=True)
        return tuple(self._number(token.text, is_punctuation=token.is_punct) for token in self._spacy.tokenizer(part))

    def _number(self, word: str, *, is_punctuation: bool) -> int:
        number = self._numbers.setdefault(word, len(self._words))
        if number == len(self._words):
            self._words.append(word)
            self._lengths.append(len(word))
            is_end = word in self._sentence_ends
            self._roles.append(ENDS_SENTENCE if is_end else PUNCTUATION if is_punctuation else IN_SENTENCE)
            self._no_symbols.append(not self._symbols.issuperset(word))
            self._letters.append(any(map(str.isalpha, word)))
        return number


def certainly_repeats_little(words: RememberedWords, step: Any, text: str) -> bool:  # noqa: ANN401 - of datatrove
    """Return whether certainly no run of words repeats so often that a `GopherRepetitionFilter` drops the text."""
    if (numbers := words.numbers_of(text)) is None:
        return False
    ends = np.concatenate([[0], np.cumsum(words.lengths_of(numbers))])
    top = dict(_top_duplicates(numbers, ends, max((n for n, _ in step.top_n_grams), default=0)))
    if any(top.get(n, 0) / len(text) > most for n, most in step.top_n_grams):
        return False
    sums, factors = _hashes("".join(text.split()), ends)
    return not any(_most_duplicate(sums, factors, ends, n) / len(text) > most for n, most in step.dup_n_grams)


def _top_duplicates(numbers: IntArray, ends: IntArray, longest: int) -> Iterator[tuple[int, int]]:
    """Yield each n with what datatrove's `find_top_duplicate` returns of the runs of n words."""
    runs, most = numbers, int(numbers.max(initial=0)) + 1
    for n in range(1, min(longest, len(numbers)) + 1):
        if n > 1:
            runs = runs[:-1] * most + numbers[n - 1 :]
        _, firsts, runs, counts = np.unique(runs, return_index=True, return_inverse=True, return_counts=True)
        first = firsts[counts == counts.max()].min()
        yield n, int((ends[first + n] - ends[first] + n - 1) * counts.max())


def _hashes(characters: str, ends: IntArray) -> tuple[Hashes, Hashes]:
    """Return hashes of all characters up to each end, and by what a difference of two is to be multiplied.

    Then it depends only on the characters between the two.
    """
    codes = np.frombuffer(characters.encode("utf-32-le", "surrogatepass"), np.uint32)
    sums, factors = np.zeros(len(codes) + 1, np.uint64), np.ones(len(codes) + 1, np.uint64)
    np.cumsum(codes * np.cumprod(np.full(len(codes), BASE, np.uint64)), out=sums[1:])
    np.cumprod(np.full(len(codes), INVERSE, np.uint64), out=factors[1:])
    return sums[ends], factors[ends]


def _most_duplicate(sums: Hashes, factors: Hashes, ends: IntArray, n: int) -> int:
    """Return at least what datatrove's `find_all_duplicate` does: the characters of all runs that occurred before.

    Those whose hash occurred, that is: equal runs have equal hashes.
    """
    if (places := len(ends) - n) < 2:
        return 0
    bits = np.uint64(places.bit_length())
    keys: Hashes = (sums[n:] - sums[:-n]) * factors[:-n] >> bits << bits
    keys = np.sort(keys | np.arange(places, dtype=np.uint64))  # of equal hashes the first place comes first
    again = (keys & (np.uint64(1) << bits) - np.uint64(1))[1:][keys[1:] >> bits == keys[:-1] >> bits].astype(np.int64)
    covered = np.zeros(len(ends), np.int64)
    covered[again] += 1
    covered[again + n] -= 1
    return int(np.diff(ends)[np.cumsum(covered)[:-1] > 0].sum())


def is_certainly_good(words: RememberedWords, step: Any, text: str) -> bool:  # noqa: ANN401 - of datatrove
    """Return whether a `GopherQualityFilter` certainly keeps the text: none of its rules, in its order, drops it."""
    numbers = words.numbers_of(text)
    if numbers is None or not len(numbers):
        return False
    (no_symbols, letters), lengths, lines = words.kinds_of(numbers), words.lengths_of(numbers), text.splitlines()
    count, symbols, bullets = no_symbols.sum(), step.max_symbol_word_ratio, step.max_bullet_lines_ratio
    ellipses, least_letters = step.max_ellipsis_lines_ratio, step.max_non_alpha_words_ratio
    mean = lengths[no_symbols].mean() if count else np.nan
    return not (
        (step.min_doc_words and count < step.min_doc_words)
        or (step.max_doc_words and count > step.max_doc_words)
        or (step.min_avg_word_length and mean < step.min_avg_word_length)
        or (step.max_avg_word_length and mean > step.max_avg_word_length)
        or (symbols and max(text.count("#"), text.count("...") + text.count("…")) / len(numbers) > symbols)
        or (bullets and sum(line.lstrip().startswith(("•", "-")) for line in lines) / len(lines) > bullets)
        or (ellipses and sum(line.rstrip().endswith(("...", "…")) for line in lines) / len(lines) > ellipses)
        or (least_letters and letters.sum() / len(numbers) < least_letters)
        or (step.min_stop_words and words.count_among(numbers, step.stop_words) < step.min_stop_words)
    )


def make_faster(language: str) -> RememberedWords | None:
    """Have datatrove's filters of a language, in this process, split texts as is done here.

    The words are returned, unless the language has none between spaces.
    """
    from datatrove.utils.word_tokenizers import load_word_tokenizer
    from spacy.tokenizer import Tokenizer

    tokenizer = load_word_tokenizer(language)
    if isinstance(words := getattr(tokenizer.word_tokenize, "__self__", None), RememberedWords):
        return words
    if type(getattr(getattr(tokenizer, "tokenizer", None), "tokenizer", None)) is not Tokenizer:
        return None
    words = RememberedWords(tokenizer)
    tokenizer.word_tokenize, tokenizer.span_tokenize = words.word_tokenize, words.span_tokenize
    return words
