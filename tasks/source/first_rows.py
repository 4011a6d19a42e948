"""Describe a source by the first rows of some of its files: columns, lengths, languages, scores.

`fineweb-mask init` writes a recipe from what is found here.
"""

import math
from collections import Counter
from collections.abc import Sequence
from statistics import mean, median
from typing import NamedTuple

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.schemas import FINEWEB
from fineweb_mask.models.settings import SourceSettings
from fineweb_mask.tasks.source.discovery import SourceShard, find_source
from fineweb_mask.tasks.source.inventory import Inventory, take_inventory
from fineweb_mask.tasks.source.sample import FILES, Row, first_rows, looked_at

DESCRIBED_FILES = 4
"""Files whose first rows are read, evenly spaced."""
TEXT_NAMES = ("text", "content", "raw_content", "body", "document", "markdown")
ID_NAMES = ("id", "doc_id", "document_id", "uuid", "uid", "url")
SCORE_WORDS = ("score", "quality", "edu", "rating", "prob", "value")
NO_SCORES = frozenset({"language_score", "token_count", "n_chars", "n_tokens", "length"})
"""Columns of numbers that say nothing of how good a text is."""


class ScoreColumn(NamedTuple):
    """A column of numbers that may be a quality score."""

    name: str
    least: float
    most: float
    missing: float  # share of the rows without a number


class Described(NamedTuple):
    """What the first rows of a source say about it."""

    source: Inventory
    rows: int  # of all files
    is_counted: bool  # whether `rows` was counted, not estimated
    looked_at: int  # rows
    columns: list[str]
    text_column: str
    id_column: str | None
    repeated_ids: int  # rows that have an `id` of an earlier one
    median_chars: int
    languages: list[tuple[str, float]]  # by share of the rows that name one, or of the bytes; largest first
    dumps: int  # different values of the column `dump`
    scores: list[ScoreColumn]  # most likely a score first


def describe(path: str) -> Described:
    """Return what the first rows of a file or folder say.

    Raises
    ------
    SettingsError
        If there is no file, none can be read, or no column holds texts.
    """
    settings = SourceSettings(path=path)
    source = find_source(settings)
    shards = [shard for shard in source.shards if shard.bytes]
    rows, _ = _looked_at(shards)
    if not rows:
        raise SettingsError(f"source.path: no file of {path!r} has a row that can be read: give files with documents")
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = _text_column(rows, columns, path)
    lengths = [len(row[text]) for row in rows if isinstance(row.get(text), str)]
    named, dumps = Counter[str](), {row["dump"] for row in rows if row.get("dump")}
    for keys, size in ((dict(shard.keys), shard.bytes) for shard in shards):  # of all files, not only of some
        named.update({str(keys["language"]): size} if keys.get("language") else {})
        dumps.update({keys["dump"]} if keys.get("dump") else ())
    named = named or Counter(str(row["language"]) for row in rows if row.get("language"))
    ids = [str(row["id"]) for row in rows if row.get("id") is not None]
    of_all, is_counted = number_of_rows(shards)
    return Described(
        source=take_inventory(source, settings),
        rows=max(1, of_all),
        is_counted=is_counted,
        looked_at=len(rows),
        columns=columns,
        text_column=text,
        id_column=_id_column(rows, columns),
        repeated_ids=len(ids) - len(set(ids)),
        median_chars=round(median(lengths)),
        languages=[(name, times / named.total()) for name, times in named.most_common(5)],
        dumps=len(dumps),
        scores=_scores(rows, columns),
    )


def number_of_rows(shards: Sequence[SourceShard]) -> tuple[int, bool]:
    """Return how many rows files have, and whether they were counted: those of many files, or long ones, are not."""
    counted = [known.rows for _, known in looked_at(shards)]
    if len(shards) <= FILES and None not in counted:
        return sum(rows or 0 for rows in counted), True
    rows, read_bytes = _looked_at(shards)
    return round(sum(shard.bytes for shard in shards) / read_bytes * len(rows)) if rows else 0, False


def _looked_at(shards: Sequence[SourceShard]) -> tuple[list[Row], float]:
    """Return the first rows of some files, evenly spaced, and about how many of their bytes they are."""
    found = [first_rows(shard) for shard in shards[:: max(1, -(-len(shards) // DESCRIBED_FILES))]]
    return [row for rows, _ in found for row in rows], sum(read_bytes for _, read_bytes in found)


def _text_column(rows: Sequence[Row], columns: Sequence[str], path: str) -> str:
    """Return the column of texts: one of the usual name, or else that of the longest texts."""
    lengths = {
        name: mean(len(value) for value in values)
        for name in columns
        if (values := [row[name] for row in rows if isinstance(row.get(name), str)])
    }
    if not lengths:
        raise SettingsError(
            f"source.path: no column of {path!r} holds texts, its columns are {', '.join(columns)}: give files with "
            "a column of text"
        )
    return next((name for name in TEXT_NAMES if name in lengths), max(lengths, key=lambda name: lengths[name]))


def _id_column(rows: Sequence[Row], columns: Sequence[str]) -> str | None:
    """Return the first column of a usual name whose values all differ."""
    for name in ID_NAMES:
        if name in columns:
            values = [row.get(name) for row in rows]
            if None not in values and len(set(map(str, values))) == len(values):
                return name
    return None


def _scores(rows: Sequence[Row], columns: Sequence[str]) -> list[ScoreColumn]:
    found = []
    for name in columns:
        if name in NO_SCORES or name in FINEWEB.names or not any(word in name.lower() for word in SCORE_WORDS):
            continue
        values = [row.get(name) for row in rows]
        numbers = [
            float(value)
            for value in values
            if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        ]
        if numbers and len(set(numbers)) > 1:
            found.append(ScoreColumn(name, min(numbers), max(numbers), 1 - len(numbers) / len(rows)))
    return sorted(found, key=lambda score: (score.name.startswith("int_"), score.missing))  # int_ is rounded
