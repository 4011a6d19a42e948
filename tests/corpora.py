"""Make small corpora of which it is known which texts are copies, and which are alike without being copies.

All are the same for the same seed, and hold no text of anyone.
"""

import random
import re
from collections.abc import Callable
from itertools import combinations
from typing import NamedTuple

NOUNS = (
    "archive bakery bridge captain choir coast committee cottage council craft crew doctor engine factory farmer "
    "festival field forest garden glacier harbour hospital hotel island journal kitchen laboratory lake lantern "
    "library lighthouse machine map market meadow mill mountain museum neighbour newspaper orchard painter path "
    "pilot plan quarry railway recipe reporter river road sailor school shepherd station storm student summer "
    "teacher theatre tower town traveller tunnel valley village violin visitor weaver window winter workshop"
).split()
VERBS = (
    "admired bought built carried changed chose crossed described designed discovered explained finished followed "
    "found improved inspected joined kept left measured mended moved noticed opened painted passed planned praised "
    "prepared protected reached remembered repaired replaced reported saved searched showed studied visited watched"
).split()
ADJECTIVES = (
    "ancient bright broken busy careful cheap cold curious distant early empty famous friendly gentle heavy hidden "
    "honest large late little local lonely modern narrow northern patient plain quiet rough sandy serious sharp "
    "simple slow small steady strange strong sunny tall tired useful warm western wide wooden young"
).split()
FRAMES = (
    "The {a} {n} {v} the {n} that had been with the {n} for {d} years.",
    "In the {n}, a {a} {n} {v} every {n}, and they have {v} it to this day.",
    "When the {n} {v} the {a} {n}, nobody of the {n} had to be told why.",
    "It is said that the {a} {n} near the {n} {v} more than {d} of them.",
    "She {v} the {n} before the {a} {n} of the {n} was {v} again.",
    "They have {v} a {a} {n} and, with the help of the {n}, a {a} {n}.",
    "Most of what the {n} {v} in that {a} year came to the {n} by the {n}.",
    "A {n} of the {n} wrote that the {a} {n} and the {n} should be {v} together.",
)
WORDS = [*NOUNS, *VERBS, *ADJECTIVES]
SPLIT = re.compile(r"(\s+)")
EDITS = (0.015, 0.05, 0.2)
"""Shares of words that copies have replaced."""

LICENCE = (
    "# Permission is granted to use, copy and change these lines for any purpose, with or without a fee, as long as",
    "# this notice stands in all copies; they come as they are, without any warranty, and nobody who wrote them is",
    "# liable for what comes of their use, whether by contract or otherwise, even if told of it before.",
)
NOTICE = (
    "Availability: this item may be read in the reading room on working days between nine and five, and copies of "
    "single pages may be ordered from the desk of the archive against a fee that is set every year."
)


def prose(dice: random.Random, words: int = 300) -> str:
    """Return a clean page of at least so many words, in paragraphs: what no filter of the usual ones drops."""
    paragraphs, so_far = list[str](), 0
    while so_far < words:
        sentences = [_sentence(dice) for _ in range(min(dice.randint(3, 6), -(-(words - so_far) // 15)))]
        paragraphs.append(" ".join(sentences))
        so_far += len(paragraphs[-1].split())
    return "\n\n".join(paragraphs)


def _sentence(dice: random.Random) -> str:
    lists = {"n": NOUNS, "v": VERBS, "a": ADJECTIVES}
    return re.sub(
        r"\{(.)\}",
        lambda found: str(dice.randint(3, 99)) if found[1] == "d" else dice.choice(lists[found[1]]),
        dice.choice(FRAMES),
    )


class Template:
    """What pages of one template share: runs of words, each followed by words of a page's own, and then four words.

    Of the runs of five words of two such pages, 0.56 are in both by Jaccard, and yet they say different things.
    """

    def __init__(self, dice: random.Random, runs: int = 5, shared: int = 40, own: int = 10) -> None:
        self.runs = [" ".join(prose(dice, shared).split()[:shared]) for _ in range(runs)]
        self.end, self.own = draw(dice, 4), own

    def page(self, dice: random.Random) -> str:
        """Return one page, with words of its own."""
        parts = [f"{run} {draw(dice, self.own)}." for run in self.runs]
        return "\n".join([*parts, f"{self.end}."])


def draw(dice: random.Random, words: int) -> str:
    """Return random words."""
    return " ".join(dice.choices(WORDS, k=words))


def edited(text: str, share: float, dice: random.Random) -> str:
    """Return a copy of a text with a share of its words, one at least, replaced by another; what is between stays."""
    parts = SPLIT.split(text)
    at = [place for place, part in enumerate(parts) if part and not part.isspace()]
    for place in dice.sample(at, max(1, round(share * len(at)))):
        old = parts[place]
        parts[place] = dice.choice([word for word in WORDS if word != old])
    return "".join(parts)


class Corpus(NamedTuple):
    """Texts, in a random order that is the same for the same seed, and what is known of them."""

    texts: list[str]
    families: list[str]  # of each text: what it was made as; those of one family look alike
    copies: dict[tuple[int, int], float]  # by places of an original and its copy, the share of words replaced

    @property
    def pairs(self) -> set[tuple[int, int]]:
        """Places of texts that are copies of the same one or of each other, the smaller first."""
        groups: dict[int, list[int]] = {}
        for original, copy in self.copies:
            groups.setdefault(original, [original]).append(copy)
        return {pair for group in groups.values() for pair in combinations(sorted(group), 2)}

    def of(self, family: str) -> list[int]:
        """Return the places of a family's texts."""
        return [place for place, name in enumerate(self.families) if name == family]


def templates(pages: int = 600, seed: int = 0, name: str = "template") -> Corpus:
    """Return pages of one template, each with other content: no two are copies, and every pair's Jaccard is 0.56."""
    dice = random.Random(seed)
    shared = Template(dice)
    return _shuffled([(shared.page(dice), name) for _ in range(pages)], {}, dice)


def table(dice: random.Random, rows: int = 25) -> str:
    """Return a table of figures under a heading that all tables share."""
    head = "Region | Opening stock | Deliveries | Returns | Closing stock | Remarks of the inspector"
    lines = [
        " | ".join([dice.choice(NOUNS), *(f"{dice.randint(1, 9_999):,}" for _ in range(4)), dice.choice(ADJECTIVES)])
        for _ in range(rows)
    ]
    return "\n".join(["Quarterly inventory report, all amounts in units of one thousand", head, "-" * 40, *lines])


def code(dice: random.Random, functions: int = 4) -> str:
    """Return a module of accessors: its licence and its idioms are every module's, its names its own."""
    lines = [*LICENCE, "import logging", "from dataclasses import dataclass", "", "log = logging.getLogger(__name__)"]
    for _ in range(functions):
        verb, noun, other = dice.choice(VERBS), dice.choice(NOUNS), dice.choice(NOUNS)
        lines += [
            "",
            f"def {verb}_{noun}({other}: dict[str, int], default: int = {dice.randint(0, 99)}) -> int:",
            f"    if {other} is None:",
            '        raise ValueError("a mapping of numbers by name must be given, received none of any kind")',
            "    try:",
            f'        return int({other}["{noun}"])',
            "    except KeyError:",
            '        log.warning("there is no value of this name in the mapping, the default is used instead")',
            "        return default",
        ]
    return "\n".join(lines)


def record(dice: random.Random) -> str:
    """Return a bibliographic record: its fields and its notice are every record's."""
    first, second = (f"{dice.choice(NOUNS).title()}, {dice.choice('ABCDEFGH')}." for _ in range(2))
    return (
        f"Title: On the {dice.choice(ADJECTIVES)} {dice.choice(NOUNS)} of the {dice.choice(NOUNS)}\n"
        f"Authors: {first}; {second}\nYear of publication: {dice.randint(1900, 2020)}\n"
        f"Identifier: {dice.randrange(10**9):09d}\nShelf mark: {dice.choice('KLMN')}{dice.randint(100, 999)}\n"
        f"Abstract: {prose(dice, 15)}\n{NOTICE}"
    )


def log(dice: random.Random, lines: int = 30) -> str:
    """Return a log, every line of which is one of three statements of another name."""
    kinds = (
        "INFO worker {} finished its job in 40 ms, without errors, and waits for the next one of the queue",
        "WARN the connection to host {} was closed after 512 bytes had been sent, trying again in 5 seconds",
        "INFO all files of {} were written to the disk of this machine, and none was left out of the index",
    )
    return "\n".join(
        f"2024-03-{dice.randint(1, 28):02d}T{dice.randint(0, 23):02d}:{dice.randint(0, 59):02d} "
        + dice.choice(kinds).format(dice.choice(NOUNS))
        for _ in range(lines)
    )


KINDS: dict[str, Callable[[random.Random], str]] = {
    "prose": prose,
    "table": table,
    "code": code,
    "record": record,
    "log": log,
}


def mixed(each: int = 200, copies: int = 40, seed: int = 4) -> Corpus:
    """Return texts of every kind and pages of a template, and of each family as many copies of every share of edits."""
    dice = random.Random(seed)
    shared = Template(dice)
    makers = {**KINDS, "template": shared.page}
    texts = [(make(dice), family) for family, make in makers.items() for _ in range(each)]
    found: dict[tuple[int, int], float] = {}
    for place, family in enumerate(list(makers)):
        chosen = dice.sample(range(place * each, (place + 1) * each), copies * len(EDITS))
        for original, share in zip(chosen, EDITS * copies, strict=True):
            found[original, len(texts)] = share
            texts.append((edited(texts[original][0], share, dice), family))
    return _shuffled(texts, found, dice)


def _shuffled(texts: list[tuple[str, str]], copies: dict[tuple[int, int], float], dice: random.Random) -> Corpus:
    order = dice.sample(range(len(texts)), len(texts))
    place_of = {old: new for new, old in enumerate(order)}
    return Corpus(
        texts=[texts[old][0] for old in order],
        families=[texts[old][1] for old in order],
        copies={(place_of[one], place_of[other]): share for (one, other), share in copies.items()},
    )


def shingles(text: str, words: int = 5) -> set[tuple[str, ...]]:
    """Return the runs of so many words of a text of Latin letters, in lower case."""
    found = re.findall(r"[^\W_]+", text.lower())
    return {tuple(found[place : place + words]) for place in range(len(found) - words + 1)}


def jaccard(one: str, other: str, words: int = 5) -> float:
    """Return the similarity of two texts: shared runs of so many words, of all of both."""
    left, right = shingles(one, words), shingles(other, words)
    return len(left & right) / max(1, len(left | right))
