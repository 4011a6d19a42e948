r"""Measure how items of benchmarks are found in documents, beside the rule of 13 words in a row.

    python -m benchmarks.decontamination web_mix.parquet newsgroups20.parquet --show

The benchmark is made of the first corpus: the questions, and runs of one to three sentences, of 1,500 of its pages,
which are taken out of it, with pages that share a tenth of their runs of 13 words with one of them. To these come
2,000 questions about invented names and questions of reading tests that name nothing. What is rare is known from every
second of the remaining pages of all corpora, at most 10,000.

Recall is the share of the items that are found where they were planted in one of the other pages, by the words of the
item. Pages without anything planted should be kept; of those that are dropped, the pages are counted apart that do not
quote the item word for word, as another page of the same site may. `--show` prints each, to be read. Look-alikes are
the invented questions about other names. Speed is that of one process on the pages of the first corpus, words and all;
the least of several runs.
"""

import argparse
import random
import re
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from benchmarks.measuring import least_seconds
from benchmarks.tables import show
from fineweb_mask.models.dedup.benchmark_items import BenchmarkItems, parts_of, weigh
from fineweb_mask.models.dedup.ngrams import places, run_hashes

THRESHOLD, HELD_OUT, SAMPLE, PLANTED = 0.8, 1_500, 10_000, 1_500
QUESTION = re.compile(r"(?:^|(?<=[.!?\n]))\s*([A-Z][^.!?\n]{15,300}\?)")
SENTENCE = re.compile(r"[A-Z][^.!?\n]{30,300}[.!]")
WORD = re.compile(r"\w+")
NONE = np.empty(0, dtype=np.uint64)
LENGTHS = {"4 to 7": (4, 8), "8 to 12": (8, 13), "13 to 30": (13, 31), "31 on": (31, 10**6)}
TEMPLATES = (
    "What is the capital of the province of {a} in {b}?",
    "Which of the following best describes the role of {a} in the reign of {b}?",
    "In which year did {a} publish the second volume of the history of {b}?",
    "If {a} has {n} apples and gives {m} of them to {b}, how many apples does {a} have left?",
    "Who was the first person from {a} to climb the north face of {b}?",
)
GENERIC = (
    "What is the main idea of this passage?",
    "Which of the following statements is true?",
    "What does the word they in the last paragraph mean?",
    "What can we learn from the text?",
    "What do you think is the best title for this?",
    "How do you know that this is what he wants?",
    "What would you do if you were in his place?",
    "Who is the person that the author talks about?",
)


def names(dice: random.Random) -> dict[str, object]:
    def invented() -> str:
        return "".join(dice.choices("ka lo mi nu ve ro sta dri pel zan".split(), k=4)).title()

    return {"a": invented(), "b": invented(), "n": dice.randint(10, 99), "m": dice.randint(2, 9)}


def mine(pages: list[str], dice: random.Random) -> Iterator[dict[str, str]]:
    """Yield the questions and some passages of pages."""
    for page in pages:
        yield from ({"question": found} for found in QUESTION.findall(page))
        sentences = SENTENCE.findall(page)
        for count in (1, 3):
            if len(sentences) > count:
                place = dice.randrange(len(sentences) - count)
                yield {"passage": " ".join(sentences[place : place + count])}


def in_lines(item: str, dice: random.Random) -> str:
    words, width = item.split(), dice.randint(3, 9)
    return "\n".join(" ".join(words[place : place + width]) for place in range(0, len(words), width))


def other_case(item: str, dice: random.Random) -> str:
    """Upper, lower or title case, and other marks instead of the item's own."""
    changed = dice.choice([str.upper, str.lower, str.title])(item)
    return re.sub(r"[^\w\s]", lambda _: dice.choice(["-", "_", "*", " ", "\N{EN DASH}"]), changed)


def without_marks(item: str, _: random.Random) -> str:
    return re.sub(r"[^\w\s]", "", item)


def edited(item: str, dice: random.Random) -> str:
    return " ".join("other" if dice.random() < 0.05 else word for word in item.split())


KINDS: dict[str, Callable[[str, random.Random], str]] = {
    "verbatim": lambda item, _: item,
    "in lines": in_lines,
    "case, marks": other_case,
    "no marks": without_marks,
    "5% edited": edited,
}


def planted(item: str, page: str, dice: random.Random) -> str:
    """Return a page with an item between two of its words."""
    words = page.split(" ")
    place = dice.randrange(len(words) + 1)
    return " ".join([*words[:place], item, *words[place:]])


def plain(text: str) -> str:
    return f" {' '.join(WORD.findall(text.lower()))} "


def counted(pages: int, *counts: int) -> list[str]:
    return [f"{pages:,}", *(f"{count:,} ({1e4 * count / pages:.1f})" for count in counts)]


def ngram_hashes(text: str, words: int = 13) -> np.ndarray:
    """Return the hashes of a text's different word n-grams; a text of fewer words has the one of all of them."""
    found = [zlib.crc32(word.encode()) for word in WORD.findall(text.lower())]
    return np.unique(run_hashes(np.array(found, dtype=np.uint64), min(words, len(found)))) if found else NONE


def without_copies(pages: list[str], taken: list[str]) -> list[str]:
    known = np.unique(np.concatenate([ngram_hashes(page) for page in taken]))
    found = [ngram_hashes(page) for page in pages]
    return [page for page, own in zip(pages, found, strict=True) if 10 * len(places(own, known)) <= len(own)]


def measure(paths: list[Path], repeats: int, *, print_dropped: bool) -> None:
    dice = random.Random(0)
    corpora = {
        path.stem: [text for text in pq.read_table(path, columns=["text"])["text"].to_pylist() if text]
        for path in paths
    }
    first = paths[0].stem
    every = corpora[first]
    held_out = set(dice.sample(range(len(every)), min(HELD_OUT, len(every) // 4)))
    taken = [every[row] for row in sorted(held_out)]
    corpora[first] = [page for row, page in enumerate(every) if row not in held_out]
    corpora = {name: without_copies(pages, taken) for name, pages in corpora.items()}
    drawn = [(dice.choice(TEMPLATES), names(dice)) for _ in range(2_000)]
    rows = [
        *mine(taken, dice),
        *({"question": template.format(**values)} for template, values in drawn),
        *({"question": question} for question in GENERIC),
    ]
    sample = [page for pages in corpora.values() for page in pages[::2]]
    sample = dice.sample(sample, min(SAMPLE, len(sample)))
    parts = [part for number, row in enumerate(rows) for part in parts_of(str(number), row)]
    table, seconds = least_seconds(lambda: weigh(parts, sample), 1)
    items = BenchmarkItems(table, THRESHOLD)
    known = np.unique(np.concatenate([ngram_hashes(" ".join(part.words)) for part in parts]))
    print(f"{len(parts):,} items, of which {table.num_rows:,} are looked for; {len(sample):,} pages in {seconds:.1f} s")

    def in_a_row(texts: list[str]) -> list[bool]:
        return [len(places(ngram_hashes(text), known)) > 0 for text in texts]

    def by_structure(texts: list[str]) -> list[bool]:
        return [name is not None for name in items.overlaps(texts)]

    lines = []
    for kind, change in KINDS.items():
        for length, (least, most) in LENGTHS.items():
            those = [row for row in rows if least <= len(next(iter(row.values())).split()) < most]
            those = dice.sample(those, min(PLANTED, len(those)))
            texts = [planted(change(*row.values(), dice), dice.choice(corpora[first]), dice) for row in those]
            recalls = [f"{np.mean(way(texts)):.3f}" for way in (in_a_row, by_structure)]
            lines.append([kind, length, f"{len(those):,}", *recalls])
    show("recall of planted items", ["kind", "words", "items", "13 in a row", "by structure"], lines)
    lines = []
    for name, pages in corpora.items():
        found = items.overlaps(pages)
        quoting = 0
        for page, one in zip(pages, found, strict=True):
            if one is not None:
                item = next(iter(rows[int(one.split(",")[0])].values()))
                quoting += (is_quoted := plain(item) in plain(page))
                if print_dropped:
                    print(
                        f"- {name}: {one}, {'quoted' if is_quoted else 'NOT QUOTED'}: {item!r}\n    in {page[:200]!r}"
                    )
        dropped = sum(one is not None for one in found)
        lines.append([name, *counted(len(pages), sum(in_a_row(pages)), dropped, dropped - quoting)])
    alike = [template.format(**names(dice)) for template, _ in drawn]
    dropped = sum(by_structure(alike))
    lines.append(["look-alikes", *counted(len(alike), sum(in_a_row(alike)), dropped, dropped)])
    show("dropped (of 10,000)", ["", "pages", "13 in a row", "by structure", "not quoting"], lines)
    lines = [
        [name, f"{len(corpora[first]) / least_seconds(partial(way, corpora[first]), repeats)[1]:,.0f}"]
        for name, way in (("13 in a row", in_a_row), ("by structure", by_structure))
    ]
    show(f"pages of {first} a second", ["", "one process"], lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", type=Path, nargs="+", help="Parquet files with a column text")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--show", action="store_true", help="Print every page that is dropped, and the item.")
    arguments = parser.parse_args()
    measure(arguments.paths, arguments.repeats, print_dropped=arguments.show)
