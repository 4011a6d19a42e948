"""Describe a source by the first rows of some of its files: columns, lengths, languages, scores.

`fineweb-mask init` writes a recipe from what is found here.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from statistics import mean, median
from typing import Any, NamedTuple

import pyarrow as pa

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.schemas import FINEWEB
from fineweb_mask.models.settings import SourceSettings
from fineweb_mask.tasks.processes.texts import with_texts
from fineweb_mask.tasks.source.columns import ROWS, number_of_rows
from fineweb_mask.tasks.source.discovery import LARGEST_DOCUMENT, SourceShard, find_source
from fineweb_mask.tasks.source.inventory import Inventory, take_inventory
from fineweb_mask.tasks.source.jsonl import jsonl_records
from fineweb_mask.tasks.source.opening import broken_files, open_parquet_source
from fineweb_mask.tasks.source.warc import warc_records

DESCRIBED_FILES, PAGES = 4, 100
"""Files whose first rows are read, evenly spaced, and pages of each that is a crawl: to extract one takes longer."""
TEXT_NAMES = ("text", "content", "raw_content", "body", "document", "markdown")
ID_NAMES = ("id", "doc_id", "document_id", "uuid", "uid", "url")
SCORE_WORDS = ("score", "quality", "edu", "rating", "prob", "value")
NO_SCORES = frozenset({"language_score", "token_count", "n_chars", "n_tokens", "length"})
"""Columns of numbers that say nothing of how good a text is."""

Row = Mapping[str, Any]


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
    rows = [row for shard in shards[:: max(1, -(-len(shards) // DESCRIBED_FILES))] for row in _first_rows(shard)]
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
        text_column=text,
        id_column=_id_column(rows, columns),
        repeated_ids=len(ids) - len(set(ids)),
        median_chars=round(median(lengths)),
        languages=[(name, times / named.total()) for name, times in named.most_common(5)],
        dumps=len(dumps),
        scores=_scores(rows, columns),
    )


def _first_rows(shard: SourceShard) -> list[Row]:
    """Return the first rows of a file, none if it cannot be read; keys in its path stand where a row has no value."""
    found: list[Any] = []
    with broken_files():
        if shard.format == "jsonl":
            found = list(islice(jsonl_records(shard.url, shard.relative, LARGEST_DOCUMENT), ROWS))
        elif shard.format == "warc":
            found = list(with_texts(islice(warc_records(shard, LARGEST_DOCUMENT), PAGES)))
        else:
            with open_parquet_source(shard.url) as file:
                names = [one.name for one in file.schema_arrow if not pa.types.is_nested(one.type)]
                found = next((batch.to_pylist() for batch in file.iter_batches(ROWS, columns=names)), [])
    rows = [one for one in found if isinstance(one, dict)]
    return [{**row, **{name: key for name, key in shard.keys if row.get(name) is None}} for row in rows]


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
