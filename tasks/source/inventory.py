"""Say what a source holds: the files that are read and those that are left out, their columns, and keys in paths.

`fineweb-mask init` writes a recipe from what the first rows of some files say: columns, lengths, languages, scores.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, islice
from statistics import mean, median
from typing import Any, NamedTuple

import pyarrow as pa
from pydantic import BaseModel

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.names import alike, find
from fineweb_mask.models.schemas import FINEWEB
from fineweb_mask.models.settings import SourceSettings
from fineweb_mask.tasks.processes.texts import with_texts
from fineweb_mask.tasks.source.columns import FILES, ROWS, keys_read, looked_at, type_of_keys
from fineweb_mask.tasks.source.discovery import NO_DOCUMENTS, Source, SourceShard, find_source
from fineweb_mask.tasks.source.opening import broken_files, ending_of, jsonl_records, open_parquet_source
from fineweb_mask.tasks.source.warc import warc_records
from fineweb_mask.tasks.workspace.references import StageFile

NAMED, TOLD, MOST_CHARACTERS = 3, 15, 80
"""Files that are named of those of a kind, and kinds, columns or keys that a line names; and characters of a type."""
DESCRIBED_FILES, PAGES = 4, 100
"""Files whose first rows are read, evenly spaced, and pages of each that is a crawl: to extract one takes longer."""
TEXT_NAMES = ("text", "content", "raw_content", "body", "document", "markdown")
ID_NAMES = ("id", "doc_id", "document_id", "uuid", "uid", "url")
SCORE_WORDS = ("score", "quality", "edu", "rating", "prob", "value")
NO_SCORES = frozenset({"language_score", "token_count", "n_chars", "n_tokens", "length"})
"""Columns of numbers that say nothing of how good a text is."""

Row = Mapping[str, Any]


class Inventory(BaseModel):
    """What is read of a source, and what a person may not expect: what a line is about, and the line."""

    lines: list[tuple[str, str]]
    worries: list[tuple[str, str]]


def take_inventory(source: Source, settings: SourceSettings) -> Inventory:
    """Say what the files of a source are, of which some are looked at, and what is kept of them, if that is settled."""
    shards = source.shards
    files = [(shard, known) for shard, known in looked_at(shards) if shard.format != "warc"]
    names = {name: name for name in FINEWEB.names}  # first spellings
    types = defaultdict[str, dict[str, list[str]]](lambda: defaultdict(list))  # files, by column and type
    spelled = defaultdict[str, dict[str, list[str]]](lambda: defaultdict(list))  # files, by column and other spelling
    values = defaultdict[str, set[str]](set)  # by key
    for shard, known in files:
        fields = {field.name: field.type for field in known.schema}
        for key, value in keys_read(shard, settings).items():
            if find(key, fields) is None:
                fields[key] = type_of_keys([] if value is None else [value])
        for own, kind in fields.items():
            name = names.setdefault(alike(own), own)
            types[name][str(kind)[:MOST_CHARACTERS]].append(shard.relative)
            if name != own:
                spelled[name][own].append(shard.relative)
    for name, value in (key for shard in shards for key in shard.keys):
        values[names.setdefault(alike(name), name)].add("null" if value is None else value)
    size, endings = sum(shard.bytes for shard in shards), Counter(ending_of(one.relative).lower() for one in shards)
    kinds = ", ".join(f"{number:,} {ending or settings.format}" for ending, number in endings.most_common())
    plural = "s" * (len(shards) != 1)
    left_out = _listed(f"{what}: {len(paths):,} ({_some(paths)})" for what, paths in source.left_out.items())
    is_usual = source.left_out.keys() <= NO_DOCUMENTS
    empty = [shard.relative for shard in shards if not shard.bytes]
    as_text = {name for name, kind in shards[0].columns or () if kind == "string"}
    several = [
        f"{name} is {_in_files(found)}{', and kept as text' * (name in as_text)}"
        for name, found in types.items()
        if len(found) > 1
    ]
    counts = {name: sum(map(len, found.values())) for name, found in types.items()}
    lost = sorted({name for shard in shards for name, _ in shard.keys if name not in keys_read(shard, settings)})
    remedy = "convert or unpack them; with source.format set, any name is read"
    lines = {
        "reads": f"{len(shards):,} file{plural}, {size / 2**20:,.1f} MiB: {kinds}",
        "columns": _listed(f"{name} ({', '.join(found)})" for name, found in types.items()),
        "in paths": _listed(f"{name}={_some(sorted(found))}" for name, found in values.items()),
        "left out": left_out if is_usual else "",
    }
    worries = {
        "left out": "" if is_usual else f"{left_out}: {remedy}",
        "empty": f"{len(empty):,} files, or links that lead nowhere ({_some(empty)})" if empty else "",
        "types": _listed(several),
        "not in all": _listed(
            f"{name} in {n:,} of {len(files):,} files" for name, n in counts.items() if n < len(files)
        ),
        "spelling": _listed(f"{name} is {_in_files(others)}" for name, others in spelled.items()),
        "key lost": f"{_listed(lost)}: the pipeline has columns of these names; rename the folders" if lost else "",
    }
    return Inventory(
        lines=[(about, line) for about, line in lines.items() if line],
        worries=[(about, line) for about, line in worries.items() if line],
    )


def _some(names: Sequence[object]) -> str:
    """Return the first of some names, and how many others there are; those that are not UTF-8 are escaped."""
    first = ", ".join(str(name).encode(errors="backslashreplace").decode() for name in names[:NAMED])
    return first + (f" and {len(names) - NAMED:,} others" if len(names) > NAMED else "")


def _in_files(parts: dict[str, list[str]]) -> str:
    return ", ".join(f"{part} in {len(files):,} ({files[0]})" for part, files in parts.items())


def _listed(parts: Iterable[str]) -> str:
    """Return the first of some parts of a line, and how many others there are."""
    found = list(parts)
    more = f" and {len(found) - TOLD:,} others" if len(found) > TOLD else ""
    return ("; " if any("," in part for part in found) else ", ").join(found[:TOLD]) + more


def notes_of(documents: Iterable[StageFile]) -> list[str]:
    """Return what ingest found in the values of files, and how annotations beside them were joined by the scorers."""
    differ: dict[str, Counter[str]] = defaultdict(Counter)
    others: dict[str, list[str]] = defaultdict(list)
    repeats, lost, placed = (Counter[str]() for _ in range(3))
    for file in documents:
        lost.update(file.details.get("lost", {}))
        placed.update(name for name, by in file.details.get("sidecars", {}).items() if by == "place")
        repeats[file.name] += file.details.get("repeated_ids", 0)
        for name in file.details.get("not_kept", ()):
            others[name].append(file.name)
        for name, rows in file.details.get("keys_differ", {}).items():
            differ[name][file.name] += rows
    found = [
        f"the column {name!r} has another value than the path in {rows.total():,} rows of {_some(list(rows))}: "
        "the column's is taken"
        for name, rows in differ.items()
    ]
    if others:
        files = _some(list(dict.fromkeys(chain.from_iterable(others.values()))))
        found.append(
            f"columns of {files} are not kept, since no file that was looked at has them: {_listed(others)}; name them "
            "in source.extra_columns"
        )
    found += [f"{n:,} values of {name!r} are left empty: of another type, or none that fit" for name, n in lost.items()]
    found += [f"the annotations {name!r} of {n:,} files are joined by place, not by id" for name, n in placed.items()]
    if repeats := +repeats:
        files = _some(list(repeats))
        found.append(f"{repeats.total():,} rows have an id that an earlier row of their file has, in {files}")
    return found


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
    known = looked_at(shards)
    is_all = len(shards) <= FILES
    share = 1 if is_all else sum(shard.bytes for shard, _ in known) / sum(shard.bytes for shard in shards) or 1
    return Described(
        source=take_inventory(source, settings),
        rows=max(1, round(sum(found.rows for _, found in known) / share)),
        is_counted=is_all and all(found.is_counted for _, found in known),
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
            found = list(islice(jsonl_records(shard.url), ROWS))
        elif shard.format == "warc":
            found = list(with_texts(islice(warc_records(shard), PAGES)))
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
