"""Split texts into words, sentences and runs of words exactly as datatrove's filters do, but faster.

spaCy splits what stands between two spaces without regard to the rest of the text, and datatrove has it forget every
word after each text. Here what a word is split into is remembered, so that a text is a look-up for each of its words.
"""

import re
from collections import Counter
from itertools import accumulate
from typing import Any, NamedTuple

MOST_REMEMBERED = 200_000
"""Different strings between spaces, of which text has ever more; then all are forgotten."""
RUNS = re.compile(r"\S+|\s+")
BREAKS_SPACY = "IS_ALPHA"
"""A string that spaCy cannot hold; datatrove leaves it out of a whole text that has it."""


class _Token(NamedTuple):
    """A token of a string between spaces."""

    end: int  # from the string's start
    ends_sentence: bool
    is_punctuation: bool  # which belongs to the sentence before it


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
    """

    def __init__(self, tokenizer: Any) -> None:  # noqa: ANN401 - datatrove has no types
        self._of_texts = tokenizer.word_tokenize
        self._spans_of_texts = tokenizer.span_tokenize
        self._spacy = tokenizer.tokenizer
        self._sentence_ends = self._spacy.get_pipe("sentencizer").punct_chars
        self._words = dict[str, list[str]]()
        self._tokens = dict[str, list[_Token]]()

    def word_tokenize(self, text: str) -> list[str]:
        """Return the words and punctuation marks of a text."""
        if BREAKS_SPACY in text:
            found: list[str] = self._of_texts(text)
            return found
        remembered = self._words
        if len(remembered) > MOST_REMEMBERED:
            remembered.clear()
        parts = text.split()
        if unknown := [part for part in dict.fromkeys(parts) if part not in remembered]:
            with self._spacy.memory_zone():
                for part in unknown:
                    remembered[part] = [token.text for token in self._spacy.tokenizer(part)]
        return [word for part in parts for word in remembered[part]]

    def span_tokenize(self, text: str) -> list[tuple[int, int]]:
        """Return where each sentence of a text begins and ends."""
        if BREAKS_SPACY in text:
            found: list[tuple[int, int]] = self._spans_of_texts(text)
            return found
        if len(self._tokens) > MOST_REMEMBERED:
            self._tokens.clear()
        spans = list[tuple[int, int]]()
        begin, end, is_over = 0, 0, False
        for run in RUNS.finditer(text):
            part, start = run[0], run.start()
            if start and part[0] == " ":  # a space after a word is no token
                part, start = part[1:], start + 1
            last = start
            for token in self._split(part) if part else ():
                if is_over and not token.is_punctuation and not token.ends_sentence:
                    spans.append((begin, end))
                    begin, is_over = last, False
                elif token.ends_sentence:
                    is_over = True
                last = end = start + token.end
        return [*spans, (begin, end)] if text else []

    def _split(self, part: str) -> list[_Token]:
        if part not in self._tokens:
            with self._spacy.memory_zone():
                self._tokens[part] = [
                    _Token(token.idx + len(token.text), token.text in self._sentence_ends, token.is_punct)
                    for token in self._spacy.tokenizer(part)
                ]
        return self._tokens[part]


def get_n_grams(words: list[str], n: int) -> list[str]:
    """Return the runs of n words, with spaces between them.

    >>> get_n_grams(["a", "b", "c"], 2)
    ['a b', 'b c']
    """
    text, starts = " ".join(words), [0, *accumulate(len(word) + 1 for word in words)]
    return [text[start : end - 1] for start, end in zip(starts, starts[n:], strict=False)]


def find_top_duplicate(n_grams: list[str]) -> int:
    """Return how many characters the most frequent of these takes in all; of several, the first.

    >>> find_top_duplicate(["a b", "b c", "a b"])
    6
    """
    [(most, count)] = Counter(n_grams).most_common(1)
    return len(most) * count


def find_all_duplicate(words: list[str], n: int) -> int:
    """Return the characters of the runs of n words that repeat an earlier one, none of which overlap.

    >>> find_all_duplicate(["a", "b", "a", "b", "a", "b"], 2)
    4
    """
    text, starts = "".join(words), [0, *accumulate(map(len, words))]
    runs = [text[start:end] for start, end in zip(starts, starts[n:], strict=False)]
    if len(set(runs)) == len(runs):
        return 0
    seen, repeated, place = set[str](), 0, 0
    while place < len(runs):
        run = runs[place]
        if run in seen:
            repeated += len(run)
            place += n
        else:
            seen.add(run)
            place += 1
    return repeated


def make_faster(language: str) -> None:
    """Have datatrove's filters of a language, in this process, use what is here in place of their own."""
    from datatrove.pipeline.filters import gopher_repetition_filter
    from datatrove.utils.word_tokenizers import load_word_tokenizer
    from spacy.tokenizer import Tokenizer

    for function in (get_n_grams, find_top_duplicate, find_all_duplicate):
        setattr(gopher_repetition_filter, function.__name__, function)
    tokenizer = load_word_tokenizer(language)
    splits_at_spaces = type(getattr(getattr(tokenizer, "tokenizer", None), "tokenizer", None)) is Tokenizer
    if splits_at_spaces and not isinstance(getattr(tokenizer.word_tokenize, "__self__", None), RememberedWords):
        words = RememberedWords(tokenizer)
        tokenizer.word_tokenize, tokenizer.span_tokenize = words.word_tokenize, words.span_tokenize
