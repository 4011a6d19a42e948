"""Find the questions and passages of benchmarks inside documents, whatever the case, the punctuation and the lines.

A part of an item - its question, its passage or its text - is looked for by its runs of four words. Each weighs as much
as its words are rare, and less if other items or documents of a sample hold it, down to nothing: a phrase of many
documents is no sign of a copy. The score of a document and a part is the share of its words, by weight, that are in
runs which stand together in the document; 1 if the part is there letter by letter. The weights do not depend on the
documents that are looked through, so that a decision is the same in whatever order they come.

Parts apart and rare words that weigh more are those of decon (https://github.com/allenai/decon), phrases of many
documents that say nothing are GPT-3's (https://arxiv.org/abs/2005.14165, appendix C).
"""

import re
import unicodedata
import zlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, groupby, islice
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fineweb_mask.models.dedup.ngrams import COMMON, places, run_hashes

RUN = 4
"""Words of a run; a part of fewer words is not looked for."""
WHOLE = 20
"""A part of fewer words is only found whole: one word, a name, may be all that it says."""
WINDOW = 2
"""The runs of a part stand together if they are within so many times its words."""
INFORMATION = ((8, 20.0), (13, 12.0))
"""Least information, in nats, of a part of fewer words: what its words say by how rare they are."""
ANSWER_WITHIN = 300
"""Letters after a question in which its answer is looked for: other choices may stand between."""
PRIOR = 1_000
"""Documents without a word that are added to those in which it was counted: few documents say little."""
THRESHOLD = 0.8
"""Score of a part from which a document holds it."""
LOOKED_AT = 0.4
"""Least share of the weights from which a document is compared letter by letter."""
MOST_COMPARED = 50
"""Items that a document is compared with, those first of which it has most: a page may hold parts of thousands."""
CHARS_AT_ONCE = 1 << 22
"""Characters of texts whose words are in memory at the same time."""
FILTER_BITS = 26
"""Most bits of a hash by which a run that no part has is told at once."""
PARTS = ("text", "question", "passage")
WORD = re.compile(r"[^\W_]+")
ITEMS = pa.schema(
    [
        pa.field("name", pa.string(), nullable=False),
        pa.field("words", pa.string(), nullable=False),  # of the part, with spaces between them
        pa.field("answer", pa.string(), nullable=False),  # its words
        pa.field("alone", pa.bool_(), nullable=False),  # whether the part says enough where no answer follows
        pa.field("runs", pa.list_(pa.uint64()), nullable=False),  # hashes of the different runs
        pa.field("weights", pa.list_(pa.float32()), nullable=False),  # of the runs
        pa.field("word_weights", pa.list_(pa.float32()), nullable=False),
    ]
)
"""The parts of items that are looked for."""


class Part(NamedTuple):
    """A part of an item, in words."""

    name: str
    words: list[str]
    answer: list[str]


def words_of(text: str) -> list[str]:
    """Return the words of a text in lower case, without marks.

    >>> words_of("Don't  _press_ 'Enter' -- WAIT!")
    ['dont', 'press', 'enter', 'wait']
    """
    return WORD.findall(
        unicodedata.normalize("NFKC", text).lower().replace("'", "").replace("\N{RIGHT SINGLE QUOTATION MARK}", "")
    )


def parts_of(name: str, row: Mapping[str, str | None]) -> Iterator[Part]:
    """Yield the parts of a row with any of the columns `text`, `question`, `answer` and `passage`.

    A question that is too short to be looked for is so with its answer.

    >>> [part.words for part in parts_of("a row 1", {"question": "Who wrote Emma?", "answer": "J. Austen"})]
    [['who', 'wrote', 'emma', 'j', 'austen']]
    """
    answer = words_of(row.get("answer") or "")
    for part in PARTS:
        words = words_of(row.get(part) or "")
        own = answer if part == "question" else []
        if words and len(words) < RUN:
            words, own = words + own, []
        if len(words) >= RUN:
            yield Part(name if part == "text" else f"{name}, {part}", words, own)


def weigh(parts: Iterable[Part], sample: Iterable[str]) -> pa.Table:
    """Return `ITEMS`: the different parts, in their order, that say enough, and the weights of their runs.

    Parameters
    ----------
    parts
        The parts of all items. Of equal ones the first counts.
    sample
        Texts of the corpus, which show how rare a word or a phrase is.
    """
    found = list({(" ".join(part.words), " ".join(part.answer)): part for part in reversed([*parts])}.values())[::-1]
    words = [_hashes(part.words) for part in found]
    both = [np.unique(_hashes([*part.words, *part.answer])) for part in found]
    runs = [np.unique(run_hashes(own, RUN), return_index=True) for own in words]  # each with its first place
    known_words, with_word = np.unique(_joined(both), return_counts=True)
    known_runs, with_run = np.unique(_joined([run for run, _ in runs]), return_counts=True)
    documents = len(found)
    for text in sample:
        hashes = _hashes(words_of(text))
        with_word[places(np.unique(hashes), known_words)] += 1
        own = np.unique(run_hashes(hashes, RUN))
        with_run[places(own, known_runs)] += 2  # what five pages of a sample have is no secret
        documents += 1
    rarity = np.log((documents + PRIOR) / (with_word + 1))
    novelty = np.maximum(0, 1 - np.log(with_run) / np.log(COMMON + 2))

    def says_enough(count: int, hashes: NDArray[np.uint64]) -> bool:
        least = next((least for below, least in INFORMATION if count < below), 0.0)
        return bool(rarity[np.searchsorted(known_words, hashes)].sum() >= least)

    entries = []
    for part, own, every, (run, first) in zip(found, words, both, runs, strict=True):
        of_word = rarity[np.searchsorted(known_words, own)]
        times = np.convolve(np.ones(len(own) - RUN + 1), np.ones(RUN))  # a word is in 1 to 4 runs, and counts once
        new = novelty[np.searchsorted(known_runs, run_hashes(own, RUN))]
        weights = (np.convolve(of_word / times, np.ones(RUN), "valid") * new)[first]
        alone = says_enough(len(own), np.unique(own))
        if weights.any() and (alone or (part.answer and says_enough(len(own) + len(part.answer), every))):
            entry = {"name": part.name, "words": " ".join(part.words), "answer": " ".join(part.answer), "alone": alone}
            word_weights = of_word * np.convolve(new, np.ones(RUN)) / times
            entries.append(entry | {"runs": run, "weights": weights, "word_weights": word_weights})
    return pa.Table.from_pylist(entries, schema=ITEMS)


class BenchmarkItems:
    """The parts of items of benchmarks, as `weigh` returns them, and the score from which a document is a copy."""

    def __init__(self, items: pa.Table, threshold: float = THRESHOLD) -> None:
        self._names, self._alone, self._words, answers = (
            items[name].to_pylist() for name in ("name", "alone", "words", "answer")
        )
        self._lengths = [text.count(" ") + 1 for text in self._words]
        self._letters, self._answers = ([text.replace(" ", "") for text in texts] for texts in (self._words, answers))
        self._word_weights = items["word_weights"].combine_chunks()
        self._threshold = threshold
        runs, weights = (items[name].combine_chunks() for name in ("runs", "weights"))
        self._offsets = runs.offsets.to_numpy()
        self._runs, self._weights = runs.values.to_numpy(), weights.values.to_numpy()
        item = np.repeat(np.arange(len(items)), np.diff(self._offsets))
        self._totals = np.bincount(item, self._weights, minlength=len(items))
        order = np.argsort(self._runs, kind="stable")
        order = order[self._weights[order] > 0]
        self._rare, self._row, self._item = self._runs[order], order, item
        self._shift = np.uint64(64 - min(FILTER_BITS, 5 + len(order).bit_length()))
        self._may_have = np.zeros(1 << (64 - int(self._shift)), dtype=np.bool_)
        self._may_have[self._rare >> self._shift] = True

    def overlaps(self, texts: Sequence[str]) -> list[str | None]:
        """Return, for each text, a part of an item that is in it, with the score, or None."""
        ends = np.cumsum([len(text) for text in texts]) // CHARS_AT_ONCE
        groups = np.split(np.arange(len(texts)), np.flatnonzero(np.diff(ends)) + 1) if texts else []
        return [name for group in groups for name in self._overlaps([texts[place] for place in group])]

    def _overlaps(self, texts: Sequence[str]) -> list[str | None]:
        words = [words_of(text) for text in texts]
        hashes = _hashes(chain.from_iterable(words))
        lengths = np.fromiter(map(len, words), dtype=np.int64, count=len(words))
        firsts, runs = np.cumsum(lengths) - lengths, run_hashes(hashes, RUN)
        found: list[str | None] = [None] * len(texts)
        candidates = self._candidates(runs, np.repeat(np.arange(len(words)), lengths)) if len(self._rare) else []
        for place, group in groupby(candidates, itemgetter(0)):
            own = runs[firsts[place] :][: lengths[place] - RUN + 1]
            document = _Document("".join(words[place]), [0, *accumulate(map(len, words[place]))], own)
            for _, item in islice(group, MOST_COMPARED):
                if (score := self._score(item, document)) >= self._threshold:
                    found[place] = f"{self._names[item]}, score {score:.2f}"
                    break
        return found

    def _candidates(self, runs: NDArray[np.uint64], document: NDArray[np.int64]) -> list[tuple[int, int]]:
        """Return the documents, ascending, with each item of which one has enough runs by weight, the most first."""
        at = np.flatnonzero(self._may_have[runs >> self._shift])
        at = at[document[at] == document[at + RUN - 1]]
        low, high = (np.searchsorted(self._rare, runs[at], side=side) for side in ("left", "right"))
        counts = high - low
        ranks = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        rows = self._row[np.repeat(low, counts) + ranks]
        pairs = np.unique(np.repeat(document[at], counts) * len(self._runs) + rows)  # each run once for a document
        rows = pairs % len(self._runs)
        both, place = np.unique(pairs // len(self._runs) * len(self._names) + self._item[rows], return_inverse=True)
        items = both % len(self._names)
        shares = np.bincount(place, self._weights[rows], minlength=len(both)) / self._totals[items]
        documents, shares = both // len(self._names), shares.round(6)
        order = np.lexsort((items, -shares, documents))
        order = order[shares[order] >= min(LOOKED_AT, self._threshold) - 1e-6]
        return list(zip(documents[order].tolist(), items[order].tolist(), strict=True))

    def _score(self, item: int, document: "_Document") -> float:
        """Return how much of an item a document holds; 0 if its answer would have to follow and does not."""
        score, start = 1.0, document.find(self._letters[item])
        stop = start + len(self._letters[item])
        if start < 0 and self._lengths[item] >= WHOLE:
            score, start = self._share(item, document.runs)
            stop = start = document.ends[start]
        if start < 0 or self._alone[item]:
            return score if start >= 0 else 0.0
        answer = self._answers[item]
        return score if document.find(answer, stop, stop + ANSWER_WITHIN + len(answer)) >= 0 else 0.0

    def _share(self, item: int, runs: NDArray[np.uint64]) -> tuple[float, int]:
        """Return how many of an item's words, by weight and by number, are in runs that a window holds, and its place.

        Of all windows of a document, that counts whose runs weigh most.
        """
        first, last = self._offsets[item : item + 2]
        own, weights = self._runs[first:last], self._weights[first:last]
        at = np.flatnonzero(np.isin(runs, own))
        which = np.searchsorted(own, runs[at]).tolist()
        held, left, weight, most, best = Counter[int](), 0, 0.0, -1.0, (0, 0)
        for right, run in enumerate(which):
            held[run] += 1
            weight += weights[run] if held[run] == 1 else 0
            while at[right] - at[left] > WINDOW * self._lengths[item]:
                held[which[left]] -= 1
                weight -= weights[which[left]] if not held[which[left]] else 0
                left += 1
            if weight > most + 1e-6:
                most, best = weight, (left, right + 1)
        in_order = run_hashes(_hashes(self._words[item].split()), RUN)
        is_held = np.isin(in_order, own[which[slice(*best)]])
        covered, weights = np.convolve(is_held, np.ones(RUN)) > 0, self._word_weights[item].as_py()
        return min(covered.mean(), np.average(covered, weights=weights)), int(at[best[0]])


class _Document(NamedTuple):
    """A document's words without spaces, where each ends, from 0 on, and the hashes of its runs."""

    letters: str
    ends: list[int]
    runs: NDArray[np.uint64]

    def find(self, letters: str, start: int = 0, stop: int | None = None) -> int:
        """Return where letters stand from the beginning of a word to the end of one; -1: nowhere."""
        place = self.letters.find(letters, start, stop)
        while place >= 0:
            if all(self.ends[bisect_left(self.ends, edge)] == edge for edge in (place, place + len(letters))):
                return place
            place = self.letters.find(letters, place + 1, stop)
        return -1


def _hashes(words: Iterable[str]) -> NDArray[np.uint64]:
    return np.fromiter((zlib.crc32(word.encode()) for word in words), dtype=np.uint64)


def _joined(parts: list[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    return np.concatenate([*parts, np.empty(0, dtype=np.uint64)])
