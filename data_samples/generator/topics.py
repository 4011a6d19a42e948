"""Read the TOML files of this folder: topic vocabularies, templates, spam farms, other languages."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


def read_toml(name: str) -> dict[str, Any]:
    """Return the parsed content of one TOML file of this folder."""
    return tomllib.loads((FOLDER / name).read_text(encoding="utf-8"))


def lines(text: str) -> list[str]:
    """Split a multi-line entry into its non-empty lines."""
    return [line for line in text.split("\n") if line]


@dataclass(frozen=True)
class Measure:
    """A quantity of a topic, with the range of its plausible values."""

    name: str
    unit: str
    low: int
    high: int


@dataclass(frozen=True)
class Topic:
    """One topic's own words; `tier` decides which kinds of page it is made of."""

    name: str
    title: str
    tier: str
    themes: tuple[str, ...]
    things: tuple[str, ...]
    stuff: tuple[str, ...]
    people: tuple[str, ...]
    adjs: tuple[str, ...]
    places: tuple[str, ...]
    acts: tuple[str, ...]
    problems: tuple[str, ...]
    products: tuple[str, ...]
    measures: tuple[Measure, ...]
    facts: tuple[str, ...]


WORD_LISTS = ("themes", "things", "stuff", "people", "adjs", "places", "acts", "problems", "products")


def load_topics() -> list[Topic]:
    """Return all topics, the one with most pages first."""
    topics = []
    for file_name in ("topics_1.toml", "topics_2.toml"):
        for entry in read_toml(file_name)["topic"]:
            measures = []
            for measure in entry["measures"].split("; "):
                name, unit, low, high = measure.split("|")
                measures.append(Measure(name, unit, int(low), int(high)))
            topics.append(
                Topic(
                    name=entry["name"],
                    title=entry["title"],
                    tier=entry["tier"],
                    measures=tuple(measures),
                    facts=tuple(lines(entry["facts"])),
                    **{key: tuple(entry[key].split("; ")) for key in WORD_LISTS},
                )
            )
    return topics
