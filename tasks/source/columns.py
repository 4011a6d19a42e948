"""Settle and check the columns of the source files, before any work starts: their types, and those a recipe names."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import pyarrow as pa

from fineweb_mask.models.columns import ColumnTypeError, is_text, must_be_text, plain_type
from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.losses import names_groups
from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.models.schemas import FINEWEB, MEASURED, ROW, SOURCE_ROW, documents_schema
from fineweb_mask.models.settings import FLAT, PipelineSettings, SourceSettings
from fineweb_mask.models.settings.output import TEXT_IS_NO_GROUP
from fineweb_mask.tasks.source.discovery import LARGEST_DOCUMENT, SourceShard
from fineweb_mask.tasks.source.jsonl import first_columns
from fineweb_mask.tasks.source.reader import (
    BROKEN_FILE_ERRORS,
    ShardReader,
    broken_files,
    open_parquet_source,
    with_keys,
)
from fineweb_mask.tasks.source.warc import COLUMNS as WARC_COLUMNS
from fineweb_mask.tasks.workspace.job import BadShardError

READERS = 16
"""Footers that are read at the same time."""

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


def settle(shards: Sequence[SourceShard], settings: SourceSettings) -> list[SourceShard]:
    """Return the shards, each with the names of its columns that are kept as text (`as_text`).

    These are columns whose types in other files are others, and that no type can hold (`must_be_text`). Which columns
    JSON Lines have, only ingest finds out.
    """
    wanted = settings.extra_columns
    if not wanted or all(shard.format != "parquet" for shard in shards):
        return list(shards)
    with ThreadPoolExecutor(READERS) as readers:
        schemas = list(readers.map(schema_of, shards))
    is_mixed = any(shard.format == "jsonl" for shard in shards)
    types = [
        _extra_types(schema and with_keys(schema, shard, settings), settings)
        for shard, schema in zip(shards, schemas, strict=True)
    ]
    kinds: dict[str, set[pa.DataType]] = defaultdict(set)
    for of_shard in types:
        for name, kind in of_shard.items():
            kinds[name].add(kind)
    text = {name for name, found in kinds.items() if must_be_text(found, beside_json=is_mixed)}
    return [
        shard.model_copy(update={"as_text": names})
        if (names := tuple(name for name, kind in of_shard.items() if name in text and kind != pa.string()))
        else shard
        for shard, of_shard in zip(shards, types, strict=True)
    ]


def _extra_types(schema: pa.Schema | None, settings: SourceSettings) -> dict[str, pa.DataType]:
    """Return the plain types of a file's extra columns, those aside that ingest refuses."""
    known = {*FINEWEB.names, settings.text_column, settings.id_column}
    found = {}
    for field in schema or []:
        is_wanted = settings.extra_columns == "all" or field.name in settings.extra_columns
        if is_wanted and field.name not in known:
            try:
                found[field.name] = plain_type(field.type)
            except ColumnTypeError:
                continue
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
    is_known = columns.keys() >= set(wanted)
    for shard in shards:
        if columns.keys() >= set(wanted):
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
        columns = _columns_of(shard, source) if shard.bytes else []
        if columns is None or source.text_column in columns:
            return
        found |= dict.fromkeys(columns)
    if found:
        raise ColumnError(
            f"source.text_column: no source file has a column {source.text_column!r}, "
            f"it may be one of {', '.join(map(repr, found))}"
        )


def _columns_of(shard: SourceShard, source: SourceSettings) -> list[str] | None:
    """Return the columns of a file, of JSON Lines those of the first rows; None if there are too many rows to tell."""
    if shard.format == "parquet":
        schema = schema_of(shard)
        return [] if schema is None else schema.names
    if shard.format == "warc":
        return list(WARC_COLUMNS.names)
    with broken_files():
        return first_columns(shard, source.text_column, LARGEST_DOCUMENT)
    return []


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
        if text_column not in schema.names and not set(MEASURED.names) <= set(schema.names):
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
    schemas = [
        with_keys(schema, shard, settings.source)
        for shard in shards[:FIRST_FILES]
        if (schema := schema_of(shard)) is not None
    ]
    for index, scorer in enumerate(settings.quality.scorers):
        for key, column in scorer.source_columns.items():
            kinds = [schema.field(column).type for schema in schemas if column in schema.names]
            if kinds and all(is_text(kind) and not pa.types.is_null(kind) for kind in kinds):
                raise ColumnError(
                    f"quality.scorers.{index}.{key}: {column!r} must hold numbers, its type is {kinds[0]}: name another"
                )


def check_columns(settings: PipelineSettings, shards: Sequence[SourceShard]) -> None:
    """Check that the documents will have the columns that the recipe names.

    Raises
    ------
    ColumnError
        If no readable source file has a column, `report.by` names the text, or a column of scores holds texts.
    """
    if "text" in settings.report.by:
        raise ColumnError(f"report.by: {TEXT_IS_NO_GROUP}")
    check_text_column(shards, settings.source)
    named = list(_named(settings))
    columns = document_columns(shards, settings.source, {column for _, column, _ in named})
    if columns is None:
        return
    for key, column, instead in named:
        if column not in columns:
            others = [*instead, *(name for name in columns if name not in {"text", *MEASURED.names})]
            remedy = "" if settings.source.extra_columns == "all" else "; source.extra_columns adds some of the source"
            raise ColumnError(
                f"{key}: no document will have a column {column!r}, it may be one of {', '.join(others)}{remedy}"
            )
        if key.startswith("ingest.groups") and not names_groups(columns[column]):
            raise ColumnError(
                f"{key}: {column!r} must hold text, whole numbers or booleans, its type is {columns[column]}: name "
                "another"
            )
    _check_numbers(settings, shards)


def _named(settings: PipelineSettings) -> Iterator[tuple[str, str, list[str]]]:
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
    if settings.selection.group_column is not None:
        yield "selection.group_column", settings.selection.group_column, []
    if settings.selection.groups is not None:
        yield "selection.groups.column", settings.selection.groups.column, []
    if settings.materialize.layout != FLAT:
        yield "materialize.layout", settings.materialize.layout, [FLAT]
    for index, column in enumerate(settings.report.by):
        yield f"report.by.{index}", column, []
