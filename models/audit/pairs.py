"""Compare pairs of texts exactly: their similarity by runs of words, and which words differ."""

import re
from difflib import SequenceMatcher

import numpy as np
import pyarrow as pa

from fineweb_mask.models.dedup.minhash import shingle_sets

WORDS_COMPARED = 1_000
"""Most words of a text whose differences are marked."""
CONTEXT = 12
"""Words that are shown beside a difference, where equal ones are left out."""
LEFT_OUT = " […] "
LONGEST_WORD = 80
SPLIT = re.compile(r"\S+\s*")


def similarity(one: str, other: str, words: int) -> float:
    """Return the Jaccard similarity of the sets of runs of so many words of two texts.

    Of texts without a run it is 1 if they are equal, else 0.

    >>> similarity("one two three", "One, two three four", words=2), similarity("a", "b", words=2)
    (0.6666666666666666, 0.0)
    """
    left, right = shingle_sets(pa.array([one, other], pa.string()), words)
    either = len(np.union1d(left, right))
    return len(np.intersect1d(left, right)) / either if either else float(one == other)


def contained(item: str, text: str, words: int = 5) -> float:
    """Return the share of the runs of words of an item that a text has; an item of fewer words is one run.

    >>> contained("the quick brown fox jumps over", "So the quick brown fox jumps, they say.")
    0.5
    """
    words = max(1, min(words, len(item.split())))
    inner, outer = shingle_sets(pa.array([item, text], pa.string()), words)
    return float(np.isin(inner, outer).mean()) if len(inner) else 0.0


def marked(one: str, other: str) -> tuple[list[str], list[str]]:
    """Return both texts in pieces, in turn equal and different, of which long equal ones are shortened.

    >>> marked("a b c d", "a x c d")
    (['a ', 'b ', 'c d'], ['a ', 'x ', 'c d'])
    """
    left, right = (_words(text) for text in (one, other))
    plain = [[word.strip().lower() for word in words] for words in (left, right)]
    sides: tuple[list[str], list[str]] = ([""], [""])
    blocks = SequenceMatcher(None, plain[0], plain[1], autojunk=False).get_opcodes()
    for number, (kind, *ends) in enumerate(blocks):
        parts = left[ends[0] : ends[1]], right[ends[2] : ends[3]]
        is_first, is_last = not number, number == len(blocks) - 1
        for side, part in zip(sides, parts, strict=True):
            is_equal = kind == "equal"
            text = _shortened(part, is_first=is_first, is_last=is_last) if is_equal else "".join(part)
            if is_equal == (len(side) % 2 == 1):
                side[-1] += text
            else:
                side.append(text)
    return sides


def _words(text: str) -> list[str]:
    """Return the first words of a text with the white space after each; of very long ones, the beginning."""
    found = [word[0] for word, _ in zip(SPLIT.finditer(text.strip()), range(WORDS_COMPARED), strict=False)]
    return [f"{word[:LONGEST_WORD]}… " if len(word) > LONGEST_WORD else word for word in found]


def _shortened(words: list[str], *, is_first: bool, is_last: bool) -> str:
    """Return equal words, or of many those beside the differences."""
    begin, end = 0 if is_first else CONTEXT, 0 if is_last else CONTEXT
    if is_first and is_last:
        begin = 2 * CONTEXT
    if len(words) <= begin + end + CONTEXT:
        return "".join(words)
    return "".join([*words[:begin], LEFT_OUT, *words[len(words) - end :]])
