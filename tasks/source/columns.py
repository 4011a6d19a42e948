"""Settle and check the columns of the source files, before any work starts: their types, and those a recipe names."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache, partial
from itertools import islice
from typing import Any

import pyarrow as pa

from fineweb_mask.models.columns import ColumnTypeError, is_text, locate, must_be_text, plain_type
from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.losses import names_groups
from fineweb_mask.models.names import alike, find
from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.models.schemas import FINEWEB, MEASURED, ROW, SOURCE_ROW, documents_schema
from fineweb_mask.models.settings import FLAT, PipelineSettings, SourceSettings
from fineweb_mask.models.settings.output import TEXT_IS_NO_GROUP
from fineweb_mask.tasks.source.discovery import LARGEST_DOCUMENT, SourceShard
from fineweb_mask.tasks.source.jsonl import jsonl_records, jsonl_schema
from fineweb_mask.tasks.source.reader import (
    BROKEN_FILE_ERRORS,
    ShardReader,
    broken_files,
    columns_of,
    open_parquet_source,
    paths_of,
    with_keys,
)
from fineweb_mask.tasks.source.warc import COLUMNS as WARC_COLUMNS
from fineweb_mask.tasks.workspace.job import BadShardError

READERS = 16
"""Footers that are read at the same time."""

PEEKED_ROWS, FIRST_ROWS = 100, 10_000
"""First rows of JSON Lines: whose columns are compared with those of other files, and that may have the texts'."""

FIRST_FILES = 100
"""Files in which the column of the texts is looked for before any work."""


class ColumnError(SettingsError):
    """A setting names a column that the documents will not have."""


@lru_cache(maxsize=200_000)
def footer_schema(url: str, fingerprint: str) -> pa.Schema | None:  # noqa: ARG001 - of a changed file, it is another one
    """Return the columns of a Parquet file, or None if it cannot be read; ingest reports it."""
    raise_if_stopped()
    with broken_files(), open_parquet_source(url) as file:
        return file.schema_arrow
    return None


def schema_of(shard: SourceShard) -> pa.Schema | None:
    """Return the columns of a Parquet file, or None if it is another or cannot be read."""
    return footer_schema(shard.url, shard.fingerprint) if shard.format == "parquet" and shard.bytes else None


@lru_cache(maxsize=200_000)
def _first_columns(url: str, name: str, fingerprint: str, paths: tuple[str, ...], rows: int) -> tuple[pa.Schema, int]:  # noqa: ARG001
    """Return the columns of the first rows of a file of JSON Lines, and their number; none if it cannot be read."""
    raise_if_stopped()
    with broken_files():
        return jsonl_schema(islice(jsonl_records(url, name, LARGEST_DOCUMENT, paths), rows))
    return pa.schema([]), 0


def known_columns(shard: SourceShard, settings: SourceSettings, rows: int = PEEKED_ROWS) -> tuple[pa.Schema, int]:
    """Return the columns of a file, of JSON Lines those of the first rows and their number; none if it is not read."""
    if shard.format == "jsonl" and shard.bytes:
        return _first_columns(shard.url, shard.relative, shard.fingerprint, paths_of(shard, settings), rows)
    return WARC_COLUMNS if shard.format == "warc" else schema_of(shard) or pa.schema([]), 0


def settle(shards: Sequence[SourceShard], settings: SourceSettings, named: Iterable[str] = ()) -> list[SourceShard]:
    """Return the shards, each with what is done about its columns that are others in other files.

    A column that files spell differently has the name that the first file gives it (`spelled`). One of whole numbers
    in some files is one of whole numbers in all that have no others (`whole`). One of types that no type can hold is
    text (`must_be_text`, `as_text`). Of JSON Lines, the first rows are known, and ingest finds out about others.
    Columns that are `named` may be paths to values within others (`paths`).
    """
    if not settings.extra_columns:
        return list(shards)
    is_all = settings.extra_columns == "all"
    paths = tuple({alike(name): name for name in named if "." in name and is_all}.values())
    shards = [shard.model_copy(update={"paths": paths}) if paths else shard for shard in shards]
    with ThreadPoolExecutor(READERS) as readers:
        types = list(readers.map(partial(_extra_types, settings=settings), shards))
    first: dict[str, str] = {}  # the first spelling of each column
    spellings, kinds = defaultdict[str, set[str]](set), defaultdict[str, set[tuple[pa.DataType, str]]](set)
    for shard, own in zip(shards, types, strict=True):
        for name, kind in own.items():
            first.setdefault(alike(name), name)
            spellings[alike(name)].add(name)
            kinds[alike(name)].add((kind, shard.format))
    is_mixed = any(shard.format == "jsonl" for shard in shards)
    of_parquet = {name: {kind for kind, form in found if form == "parquet"} for name, found in kinds.items()}
    text = {name for name, found in of_parquet.items() if must_be_text(found, beside_json=is_mixed)}
    whole = {name for name, found in kinds.items() if any(pa.types.is_integer(kind) for kind, _ in found)} - text

    def settled(shard: SourceShard, own: dict[str, pa.DataType]) -> SourceShard:
        here, is_json = {alike(name): kind for name, kind in own.items()}, shard.format == "jsonl"
        columns = [(one, name, here.get(name, pa.null())) for name, one in first.items() if is_json or name in here]
        found = {
            "spelled": [one for one, name, _ in columns if len(spellings[name]) > 1 and one not in own],
            "whole": [one for one, name, kind in columns if name in whole and not pa.types.is_integer(kind)],
            "as_text": [one for one, name, kind in columns if name in text and not is_json and kind != pa.string()],
        }
        return shard.model_copy(update={key: tuple(names) for key, names in found.items()})

    return list(map(settled, shards, types))


def _extra_types(shard: SourceShard, settings: SourceSettings) -> dict[str, pa.DataType]:
    """Return the plain types of a file's extra columns, those aside that ingest refuses."""
    found = dict[str, pa.DataType]()
    for name, _, kind in columns_of(known_columns(shard, settings)[0], shard, settings)[len(FINEWEB) :]:
        with suppress(ColumnTypeError):
            found |= {} if kind is None else {name: plain_type(kind)}
    return found


def document_columns(
    shards: Sequence[SourceShard], source: SourceSettings, wanted: Collection[str]
) -> dict[str, pa.DataType] | None:
    """Return the columns that the documents will have, reading source files only until all `wanted` ones are found.

    Files that cannot be read are skipped; ingest reports them. Returns None if columns are missing and no file could be
    read.
    """
    columns = {field.name: field.type for field in documents_schema()}
    del columns[ROW.name], columns[SOURCE_ROW.name]
    is_known = all(find(name, columns) for name in wanted)
    for shard in shards:
        if all(find(name, columns) for name in wanted):
            break
        try:
            reader = ShardReader(shard, source)
        except BadShardError:
            continue
        is_known = True
        columns |= {field.name: field.type for field in reader.extra}
    return columns if is_known else None


def check_text_column(shards: Sequence[SourceShard], source: SourceSettings) -> None:
    """Check that a source file has the column of the texts, reading files until one of the first has it.

    Raises
    ------
    ColumnError
        If none has it. Files that cannot be read, or are without rows, say nothing; ingest reports them.
    """
    found: dict[str, None] = {}
    for shard in shards[:FIRST_FILES]:
        columns = _columns_without_text(shard, source)
        if columns is None:
            return
        found |= dict.fromkeys(columns)
    if found:
        raise ColumnError(
            f"source.text_column: no source file has a column {source.text_column!r}, "
            f"it may be one of {', '.join(map(repr, found))}"
        )


def _columns_without_text(shard: SourceShard, source: SourceSettings) -> list[str] | None:
    """Return the columns of a file without that of the texts; None if it has it, or too many rows of JSON to tell."""
    for most in (PEEKED_ROWS, FIRST_ROWS):
        schema, rows = known_columns(shard, source, most)
        if locate(source.text_column, schema)[1] is not None or rows == FIRST_ROWS:
            return None
    return list(schema.names)


def check_texts(files: Sequence[SourceShard], setting: str, text_column: str = "text") -> None:
    """Check that the first of some Parquet files can be opened, and hold a column of texts, or a workspace's documents.

    Raises
    ------
    ColumnError
        If one cannot or does not; the message names the `setting`. Those of other formats say nothing.
    """
    for file in files[:FIRST_FILES]:
        if file.format != "parquet":
            continue
        schema = schema_of(file)
        if schema is None:
            raise ColumnError(f"{setting}: {file.relative} cannot be read: {_reason(file)}: give a whole file")
        if locate(text_column, schema)[1] is None and not set(MEASURED.names) <= set(schema.names):
            raise ColumnError(
                f"{setting}: {file.relative} has no column {text_column!r}, its columns are {', '.join(schema.names)}: "
                "name its column of texts so"
            )


def _reason(file: SourceShard) -> str:
    try:
        open_parquet_source(file.url).close()
    except (*BROKEN_FILE_ERRORS, OSError) as error:
        return " ".join(str(error).split()).rstrip(".")
    return "it is no Parquet file"


def _check_numbers(settings: PipelineSettings, shards: Sequence[SourceShard]) -> None:
    """Check that the columns of scores hold numbers in one of the first Parquet files that have them."""
    parquet, source = [shard for shard in shards[:FIRST_FILES] if shard.format == "parquet"], settings.source
    schemas = [with_keys(known_columns(shard, source)[0], shard, source) for shard in parquet]
    for index, scorer in enumerate(settings.quality.scorers):
        for key, column in scorer.source_columns.items():
            kinds = [kind for schema in schemas if (kind := locate(column, schema)[1]) is not None]
            if kinds and all(is_text(kind) and not pa.types.is_null(kind) for kind in kinds):
                raise ColumnError(
                    f"quality.scorers.{index}.{key}: {column!r} must hold numbers, its type is {kinds[0]}: name another"
                )


def check_columns(settings: PipelineSettings, shards: Sequence[SourceShard]) -> dict[str, Any]:
    """Check that the documents will have the columns that the recipe names.

    The settings that name a column in another spelling are returned as they are to be, by their keys.

    Raises
    ------
    ColumnError
        If no readable source file has a column, `report.by` names the text, or a column of scores holds texts.
    """
    if "text" in settings.report.by:
        raise ColumnError(f"report.by: {TEXT_IS_NO_GROUP}")
    check_text_column(shards, settings.source)
    named, spelled = list(named_columns(settings)), dict[str, Any]()
    columns = document_columns(shards, settings.source, {column for _, column, _ in named})
    if columns is None:
        return spelled
    for key, column, instead in named:
        if (own := find(column, columns)) is None:
            others = [*instead, *(name for name in columns if name not in {"text", *MEASURED.names})]
            remedy = "" if settings.source.extra_columns == "all" else "; source.extra_columns adds some of the source"
            raise ColumnError(
                f"{key}: no document will have a column {column!r}, it may be one of {', '.join(others)}{remedy}"
            )
        if own != column:
            values = getattr(settings.ingest.copies, key.removeprefix("ingest.copies."), {})
            spelled[key] = {find(name, columns) or name: these for name, these in values.items()} or own
        if key.startswith("ingest.groups") and not names_groups(columns[own]):
            raise ColumnError(
                f"{key}: {column!r} must hold text, whole numbers or booleans, its type is {columns[own]}: name another"
            )
    _check_numbers(settings, shards)
    return spelled


def named_columns(settings: PipelineSettings) -> Iterator[tuple[str, str, list[str]]]:
    """Yield every setting that names a column of the documents, the column, and the other values it may have."""
    for index, scorer in enumerate(settings.quality.scorers):
        for key, column in scorer.source_columns.items():
            yield f"quality.scorers.{index}.{key}", column, []
    for column in settings.ingest.copies.prefer:
        yield "ingest.copies.prefer", column, []
    for column in settings.ingest.copies.exempt:
        yield "ingest.copies.exempt", column, []
    for index, column in enumerate(settings.ingest.groups or []):
        yield f"ingest.groups.{index}", column, []
    groups, layout = settings.selection.groups, settings.materialize.layout
    single = {
        "selection.group_column": settings.selection.group_column,
        "selection.groups.column": groups and groups.column,
        "quality.by": settings.quality.by,
        "materialize.layout": None if layout == FLAT else layout,
    }
    yield from ((key, column, [FLAT] if column == layout else []) for key, column in single.items() if column)
    for index, column in enumerate(settings.report.by):
        yield f"report.by.{index}", column, []
