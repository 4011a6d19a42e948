"""Draw a sample of a source, plant cases whose fate is known, and write both as a small source of its own."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from fineweb_mask.models.audit.planting import Template, edited, prose
from fineweb_mask.models.errors import DataError, SettingsError
from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.models.schemas import FINEWEB
from fineweb_mask.models.settings import IngestSettings, SourceSettings
from fineweb_mask.models.settings.output import TEXT_IS_NO_GROUP
from fineweb_mask.tasks.audit.score_check import counted
from fineweb_mask.tasks.exclusion import parts_in
from fineweb_mask.tasks.reporting.samples import evenly_spaced
from fineweb_mask.tasks.source.columns import document_columns
from fineweb_mask.tasks.source.discovery import SourceShard, find_files
from fineweb_mask.tasks.source.reader import ShardReader
from fineweb_mask.tasks.storage.atomic import make_folder
from fineweb_mask.tasks.storage.parquet import write_table
from fineweb_mask.tasks.workspace.job import BadShardError

DOCUMENTS = 20_000
FEWEST = 1_000
MOST_FILES = 32
SCANNED = 20
"""Rows that are read for one that is drawn: of a large file, the sample is of its beginning."""
PLANTED = (20, 200)
"""Cases of a kind, at least and at most; between them, one for a hundred documents."""
EDITS = {"edited 1.5%": 0.015, "edited 5%": 0.05, "edited 20%": 0.2}
"""Shares of words that planted copies have replaced."""
EDITED_WORDS = 100
"""Words of a document that is edited, at least."""
TEMPLATES = 4
SHORT_ITEM = 13
"""Words from which on a benchmark's item is long."""
BY_FILE = "file"
"""What documents are grouped by where no column is named."""
SOURCE, CASES, WORKSPACE = "source", "cases.parquet", "workspace"
"""In the folder of a drawn source: its files, what every row is, and the workspace that it is ingested into."""

SAMPLED = "sampled"
CASE_SCHEMA = pa.schema(
    [
        pa.field("shard", pa.string(), nullable=False),
        pa.field("source_row", pa.uint32(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),  # `SAMPLED`, or as what it was planted
        pa.field("group", pa.string(), nullable=False),
        pa.field("original", pa.uint32()),  # row in the same shard of which it is a copy
    ]
)
"""What every row of the drawn source is."""


def check_sample(shards: Sequence[SourceShard], source: SourceSettings, by: str | None, documents: int) -> None:
    """Check that enough documents are asked for, and that they have the column of the groups.

    Raises
    ------
    SettingsError
        If not.
    """
    if documents < FEWEST:
        raise SettingsError(f"--documents must be at least {FEWEST:,}, fewer tell nothing: received {documents:,}")
    if by in {"text", source.text_column}:
        raise SettingsError(f"--by {by}: {TEXT_IS_NO_GROUP}")
    columns = {} if by is None else document_columns(shards, source, {by})
    if by is not None and columns is not None and by not in columns:
        names = ", ".join(name for name in columns if name not in {"text", "content_hash"})
        raise SettingsError(f"--by {by}: no document will have this column: name one of {names}")


def draw_source(
    folder: Path,
    shards: Sequence[SourceShard],
    source: SourceSettings,
    ingest: IngestSettings,
    by: str | None,
    documents: int,
) -> None:
    """Write a source of about so many documents and what is planted into `folder/source`, and `folder/cases.parquet`.

    Raises
    ------
    DataError
        If no file can be read, or the column of the groups has too many values.
    """
    tables, groups = _drawn(shards, source, by, documents)
    counted(groups, by or BY_FILE)
    dice = random.Random(0)  # noqa: S311 - the same cases every time
    each = min(max(sum(map(len, groups)) // 100, PLANTED[0]), PLANTED[1])
    planted = _planted(tables, ingest, each, dice)
    cases = list[pa.Table]()
    make_folder(folder / SOURCE)
    for number, (table, own) in enumerate(zip(tables, groups, strict=True)):
        name = f"s{number:03d}"
        rows = [{**case.row, "text": case.text, "token_count": None} for case in planted[number]]
        both = pa.concat_tables([table, pa.Table.from_pylist(rows, schema=table.schema)])
        write_table(both, folder / SOURCE / f"{name}.parquet")
        columns = {
            "shard": [name] * both.num_rows,
            "source_row": range(both.num_rows),
            "kind": [*[SAMPLED] * len(own), *(case.kind for case in planted[number])],
            "group": [*own, *("" for _ in rows)],
            "original": [*[None] * len(own), *(case.original for case in planted[number])],
        }
        cases.append(pa.table(columns, schema=CASE_SCHEMA))
    write_table(pa.concat_tables(cases), folder / CASES)


def _drawn(
    shards: Sequence[SourceShard], source: SourceSettings, by: str | None, documents: int
) -> tuple[list[pa.Table], list[list[str]]]:
    """Return random rows of some files, and the group of each."""
    dice = np.random.default_rng(0)
    tables, groups, reason = list[pa.Table](), list[list[str]](), ""
    chosen = [shards[place] for place in evenly_spaced(len(shards), MOST_FILES)]
    for place, shard in enumerate(track("files", chosen)):
        raise_if_stopped()
        wanted = -(-(documents - sum(map(len, groups))) // (len(chosen) - place))
        try:
            reader = ShardReader(shard, source)
            scanned = wanted * (1 if shard.format == "warc" else SCANNED)
            table = pa.Table.from_batches(list(_some(reader, scanned)), pa.schema([*FINEWEB, *reader.extra]))
        except BadShardError as error:
            reason = str(error)
            continue
        rows = np.sort(dice.choice(table.num_rows, min(wanted, table.num_rows), replace=False))
        table = table.take(rows).combine_chunks()
        values = table[by].to_pylist() if by in table.column_names else [None] * table.num_rows
        groups.append([shard.relative if by is None else "" if value is None else str(value) for value in values])
        tables.append(table)
    if not any(groups):
        raise DataError(f"source.path: no document can be read of {len(chosen)} files: {reason or 'they are empty'}")
    return tables, groups


def _some(reader: ShardReader, rows: int) -> Iterator[pa.RecordBatch]:
    """Yield batches of a file until so many rows were read, without those that cannot be read."""
    seen = 0
    for batch, problems in reader.batches():
        yield batch if problems is None else batch.filter(problems.is_null())
        seen += batch.num_rows
        if seen >= rows:
            return


class _Case(NamedTuple):
    kind: str
    text: str
    row: dict[str, Any]  # its other columns
    original: int | None = None


def _planted(tables: Sequence[pa.Table], ingest: IngestSettings, each: int, dice: random.Random) -> list[list[_Case]]:
    """Return what is planted in each file, so many of each kind."""
    found: list[list[_Case]] = [[] for _ in tables]
    long = [
        (place, row)
        for place, table in enumerate(tables)
        for row, text in enumerate(table["text"].to_pylist())
        if text and len(text) > 5 * EDITED_WORDS and len(text.split()) >= EDITED_WORDS
    ]
    kinds = ["copy", *EDITS]
    chosen = dice.sample(long, min(len(long), each * len(kinds)))
    for number, (place, row) in enumerate(chosen):
        kind, columns = kinds[number % len(kinds)], tables[place].slice(row, 1).to_pylist()[0]
        text = columns["text"]
        copy = edited(text, EDITS[kind], dice) if kind in EDITS else "  ".join(text.split(" "))
        found[place].append(_Case(kind, copy, {**columns, "id": f"planted {kind} {number}"}, row))
    language = _language(tables, ingest)
    for number, (kind, text) in enumerate(_others(ingest, each, dice)):
        if kind != "clean" or (language or "en").startswith("en"):  # it is in English
            columns = {"id": f"planted {kind} {number}", "language": language, "language_score": 1.0}
            found[number % len(tables)].append(_Case(kind, text, columns))
    return found


def _others(ingest: IngestSettings, each: int, dice: random.Random) -> Iterator[tuple[str, str]]:
    """Yield cases that are no copies of documents, and their kinds."""
    yield from (("clean", prose(dice)) for _ in range(each))
    shared = [Template(dice) for _ in range(TEMPLATES)]
    yield from (("template", shared[number % TEMPLATES].page(dice)) for number in range(each))
    items = [text for _, text in benchmark_items(ingest)]
    for kind, is_short in (("benchmark", False), ("short benchmark", True)):
        some = [item for item in items if item.strip() and (len(item.split()) < SHORT_ITEM) is is_short]
        for item in dice.sample(some, min(each, len(some))):
            yield kind, f"{prose(dice, 120)}\n\n{item}\n\n{prose(dice, 120)}"


def benchmark_items(ingest: IngestSettings) -> list[tuple[str, str]]:
    """Return the parts of items that `ingest.decontaminate` names, each as ingest names it, and its words."""
    files = (file for path in ingest.decontaminate for file in find_files(path, "ingest.decontaminate"))
    return [(part.name, " ".join(part.words)) for file in files for part in parts_in(file)]


def _language(tables: Sequence[pa.Table], ingest: IngestSettings) -> str | None:
    """Return a language that ingest keeps: the first that it names, or the most frequent one."""
    if ingest.languages:
        return ingest.languages[0]
    counts = Counter(value for table in tables for value in table["language"].to_pylist() if value)
    return counts.most_common(1)[0][0] if counts else None
