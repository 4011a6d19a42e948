"""Damage pages as the web does: edited copies, truncation, broken encodings and leftovers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from generator.grammar import LISTS
from generator.pages import TEMPLATES, surround

if TYPE_CHECKING:
    import random

    from generator.grammar import Page

SYNONYMS: dict[str, str] = LISTS["synonyms"]
MOJIBAKE: dict[str, str] = LISTS["mojibake"]
LEFTOVERS: list[str] = LISTS["leftovers"]


def shingles(text: str) -> set[str]:
    """Return the set of three-word sequences of a text."""
    words = text.lower().split()
    return {" ".join(words[i : i + 3]) for i in range(len(words) - 2)}


def edited_copy(page: Page, text: str, strength: float) -> str:
    """Return a near-duplicate: sentences dropped or added, words and numbers changed, other lines around it.

    `strength` is the chance that any one sentence is touched. It is lowered until the copy shares at least
    half of the three-word sequences found in either text, so that every copy is recognisably one.
    """
    original = shingles(text)
    while True:
        copy = edit(page, text, strength)
        changed = shingles(copy)
        if len(original & changed) >= 0.5 * len(original | changed):
            return copy
        strength *= 0.6


def edit(page: Page, text: str, strength: float) -> str:
    """Edit a text once."""
    rng = page.rng
    out = []
    for number, block in enumerate(text.split("\n")):
        kept = []
        for sentence in re.split(r"(?<=[.!?]) ", block):
            chance = rng.random()
            if chance < 0.3 * strength and number > 1:
                continue
            if chance < 0.7 * strength:
                kept.append(replace_words(rng, sentence))
            elif chance < strength:
                kept.append(re.sub(r"\b\d{2,4}\b", lambda match: renumber(rng, match[0]), sentence))
            else:
                kept.append(sentence)
        if kept:
            out.append(" ".join(kept))
    if rng.random() < strength:
        out.append(page.sentence(rng.choice(TEMPLATES["reference"]["sentences"])))
    if rng.random() < 0.3:
        out[0] = f"{out[0]} | {page.brand}"
    copy = "\n".join(out)
    if rng.random() < 0.8 * strength:
        copy = surround(page, copy)
    return copy if copy != text else f"{copy}\n{page.expand('Last updated: {day} {month} {recent}')}"


def replace_words(rng: random.Random, sentence: str) -> str:
    """Swap about half of the words that have a synonym."""
    words = sentence.split(" ")
    return " ".join(SYNONYMS[w] if w in SYNONYMS and rng.random() < 0.6 else w for w in words)


def renumber(rng: random.Random, number: str) -> str:
    """Shift a number a little."""
    return str(max(1, int(number) + rng.choice([-3, -2, -1, 1, 2, 3])))


def same_but_for_form(rng: random.Random, text: str) -> str:
    """Return a copy that differs at most in case and white space."""
    form = rng.choice(["same", "same", "title", "upper", "spaces"])
    first, _, rest = text.partition("\n")
    if form == "title":
        return f"{first.upper()}\n{rest}"
    if form == "upper" and len(text) < 900:
        return text.upper()
    if form == "spaces":
        return "  " + text.replace("\n", "\n\n").replace(". ", ".  ") + "\n"
    return text


def truncated(rng: random.Random, text: str) -> str:
    """Cut a text in the middle of a word."""
    cut = int(len(text) * rng.uniform(0.3, 0.85))
    while cut < len(text) - 1 and not (text[cut - 1].isalpha() and text[cut].isalpha()):
        cut += 1
    return text[:cut]


def broken(rng: random.Random, text: str) -> str:
    """Damage a text as bad extraction does: wrong decoding, control characters, repeated lines, mark-up."""
    how = rng.choice(["mojibake", "control", "repeat", "markup", "markup"])
    blocks = text.split("\n")
    if how == "mojibake":
        for good, bad in MOJIBAKE.items():
            text = text.replace(good, bad)
        return text.replace("the ", "the\u00c2\u00a0", 5)
    if how == "control":
        chars = list(text)
        for _ in range(max(3, len(chars) // 90)):
            chars.insert(rng.randrange(len(chars)), rng.choice("\x00\x01\x0b\x1b\x7f\ufffd\u200b"))
        return "".join(chars)
    if how == "repeat":
        line = min(rng.sample(blocks, min(3, len(blocks))), key=len)
        place = rng.randrange(len(blocks))
        return "\n".join(blocks[:place] + [line] * rng.randint(4, 14) + blocks[place:])
    for _ in range(rng.randint(2, 7)):
        blocks.insert(rng.randrange(len(blocks) + 1), rng.choice(LEFTOVERS))
    return "\n".join(blocks)
