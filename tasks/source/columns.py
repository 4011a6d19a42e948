"""Settle and check the columns of the source files, before any work starts: their types, and those a recipe names."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from typing import Any

import pyarrow as pa

from fineweb_mask.models.columns import ColumnTypeError, is_text, locate, must_be_text, plain_type, with_paths
from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.losses import names_groups
from fineweb_mask.models.names import alike, find
from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.models.schemas import FINEWEB, MEASURED, ROW, SOURCE_ROW, documents_schema
from fineweb_mask.models.settings import FLAT, PipelineSettings, SourceSettings
from fineweb_mask.models.settings.output import TEXT_IS_NO_GROUP
from fineweb_mask.tasks.source.discovery import SourceShard
from fineweb_mask.tasks.source.jsonl import first_columns, jsonl_schema
from fineweb_mask.tasks.source.reader import (
    BROKEN_FILE_ERRORS,
    INDEX,
    ShardReader,
    broken_files,
    open_parquet_source,
    own_names,
    paths_of,
)
from fineweb_mask.tasks.source.warc import COLUMNS as WARC_COLUMNS
from fineweb_mask.tasks.workspace.job import BadShardError

READERS = 16
"""Footers that are read at the same time."""

PEEKED_ROWS = 100
"""Rows of JSON Lines whose columns are compared with those of other files, before any work."""

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
def _first_columns(shard: SourceShard, max_document_bytes: int, paths: tuple[str, ...]) -> pa.Schema | None:
    """Return the columns of the first rows of a file of JSON Lines, or None if it cannot be read."""
    raise_if_stopped()
    with broken_files():
        return jsonl_schema(shard, max_document_bytes, paths, PEEKED_ROWS)[0]
    return None


def _known_columns(shard: SourceShard, settings: SourceSettings) -> pa.Schema:
    """Return the columns of a file, those at paths within others as well; of JSON Lines, those of its first rows."""
    paths, none = paths_of(shard, settings), pa.schema([])
    if shard.format == "jsonl" and shard.bytes:
        return _first_columns(shard, settings.max_document_bytes, tuple(paths)) or none
    return with_paths(schema_of(shard) or none, paths)[0]


def has_ids(shard: SourceShard, settings: SourceSettings) -> bool:
    """Return whether the documents of a file have ids of their own, as far as is known before it is read."""
    return shard.format == "warc" or find(settings.id_column, _known_columns(shard, settings).names) is not None


def settle(shards: Sequence[SourceShard], settings: SourceSettings, named: Iterable[str] = ()) -> list[SourceShard]:
    """Return the shards, each with what is done about its columns that are others in other files.

    A column that files spell differently has the name that the first file gives it (`spelled`). One of whole numbers
    in some files is one of whole numbers in all that have no others (`whole`). One of types that no type can hold is
    text (`must_be_text`, `as_text`). Of JSON Lines, the first rows are known, and ingest finds out about others.
    Columns that are `named` may be paths to values within others (`paths`).
    """
    if not settings.extra_columns:
        return list(shards)
    if settings.extra_columns == "all" and (paths := tuple(dict.fromkeys(name for name in named if "." in name))):
        shards = [shard.model_copy(update={"paths": paths}) for shard in shards]
    with ThreadPoolExecutor(READERS) as readers:
        types = list(readers.map(partial(_extra_types, settings=settings), shards))
    first: dict[str, str] = {}  # the name of a column, by what is the same of its spellings
    spellings, kinds = defaultdict[str, set[str]](set), defaultdict[str, set[pa.DataType]](set)
    integers = {alike(name) for of_shard in types for name, kind in of_shard.items() if pa.types.is_integer(kind)}
    for shard, of_shard in zip(shards, types, strict=True):
        for name, kind in of_shard.items():
            first.setdefault(alike(name), name)
            spellings[alike(name)].add(name)
            kinds[alike(name)].update([kind] if shard.format == "parquet" else [])
    is_mixed = any(shard.format == "jsonl" for shard in shards)
    text = {name for name, found in kinds.items() if must_be_text(found, beside_json=is_mixed)}
    various = {name for name, found in spellings.items() if len(found) > 1}

    def settled(shard: SourceShard, of_shard: dict[str, pa.DataType]) -> SourceShard:
        own, unknown = {alike(name): kind for name, kind in of_shard.items()}, shard.format == "jsonl"
        fractions = {
            name for name, kind in own.items() if pa.types.is_floating(kind) or (unknown and kind == pa.null())
        }
        later = first.keys() - own if unknown else set()
        update = {
            "spelled": [
                name for one, name in first.items() if one in various & (own.keys() | later) and name not in of_shard
            ],
            "whole": [name for one, name in first.items() if one in (integers - text) & (fractions | later)],
            "as_text": [first[one] for one, kind in own.items() if one in text and not unknown and kind != pa.string()],
        }
        found = {key: tuple(names) for key, names in update.items() if names}
        return shard.model_copy(update=found) if found else shard

    return [settled(shard, of_shard) for shard, of_shard in zip(shards, types, strict=True)]


def _extra_types(shard: SourceShard, settings: SourceSettings) -> dict[str, pa.DataType]:
    """Return the plain types of a file's extra columns, those aside that ingest refuses."""
    schema, found = _known_columns(shard, settings), {}
    for name, own in own_names(schema.names, shard, settings)[len(FINEWEB) :]:
        if schema.names.count(own) == 1:
            try:
                found[name] = plain_type(schema.field(own).type)
            except ColumnTypeError:
                continue
    return found


def remarks(shards: Sequence[SourceShard], settings: SourceSettings) -> list[str]:
    """Return what is done about columns that differ between files, or are not kept, a line for people on each."""
    kinds, spellings = defaultdict[str, dict[str, str]](dict), defaultdict[str, dict[str, str]](dict)
    text, indexes = {name for shard in shards for name in shard.as_text}, dict[str, str]()
    asked = {"text": settings.text_column, "id": settings.id_column}
    for shard in shards if settings.extra_columns else shards[:FIRST_FILES]:
        schema = _known_columns(shard, settings)
        for name, own in own_names(schema.names, shard, settings):
            if own != asked.get(name, name) and own in schema.names:
                spellings[asked.get(name, name)].setdefault(own, shard.relative)
            if name in text and own in schema.names:
                kinds[name].setdefault(str(schema.field(own).type), shard.relative)
        for name in filter(INDEX.fullmatch, schema.names if settings.extra_columns == "all" else []):
            indexes.setdefault(name, shard.relative)
    return [
        *(f"column {name!r} is kept as text, because its type differs: {_places(of)}" for name, of in kinds.items()),
        *(f"column {name!r} has another spelling, and is one column: {_places(of)}" for name, of in spellings.items()),
        *(
            f"column {name!r} in {file} is an index of pandas and left out: list source.extra_columns to keep it"
            for name, file in indexes.items()
        ),
    ]


def _places(files: Mapping[str, str]) -> str:
    return ", ".join(f"{one} in {relative}" for one, relative in files.items())


def document_columns(
    shards: Sequence[SourceShard], source: SourceSettings, wanted: Collection[str]
) -> dict[str, pa.DataType] | None:
    """Return the columns that the documents will have, reading source files only until all `wanted` ones are found.

    Files that cannot be read are skipped; ingest reports them. Returns None if columns are missing and no file could be
    read.
    """
    columns = {field.name: field.type for field in documents_schema()}
    del columns[ROW.name], columns[SOURCE_ROW.name]
    is_known = False
    for shard in shards:
        if None not in {find(name, columns) for name in wanted}:
            return columns
        try:
            reader = ShardReader(shard, source)
        except BadShardError:
            continue
        is_known = True
        columns |= {field.name: field.type for field in reader.extra}
    return columns if is_known or None not in {find(name, columns) for name in wanted} else None


def check_text_column(shards: Sequence[SourceShard], source: SourceSettings) -> None:
    """Check that a source file has the column of the texts, reading files until one of the first has it.

    Raises
    ------
    ColumnError
        If none has it. Files that cannot be read, or are without rows, say nothing; ingest reports them.
    """
    found: dict[str, None] = {}
    for shard in shards[:FIRST_FILES]:
        columns = _columns_without(source.text_column, shard, source.max_document_bytes) if shard.bytes else []
        if columns is None:
            return
        found |= dict.fromkeys(columns)
    if found:
        raise ColumnError(
            f"source.text_column: no source file has a column {source.text_column!r}, "
            f"it may be one of {', '.join(map(repr, found))}"
        )


def _columns_without(name: str, shard: SourceShard, max_document_bytes: int) -> list[str] | None:
    """Return the columns of a file that lacks one; None if it has it, or has too many rows of JSON to tell."""
    if shard.format == "jsonl":
        with broken_files():
            return first_columns(shard, name, max_document_bytes)
        return []
    schema = WARC_COLUMNS if shard.format == "warc" else schema_of(shard) or pa.schema([])
    return schema.names if locate(name, schema) is None else None


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
        if locate(text_column, schema) is None and not set(MEASURED.names) <= set(schema.names):
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
    schemas = [_known_columns(shard, settings.source) for shard in shards[:FIRST_FILES] if shard.format == "parquet"]
    for index, scorer in enumerate(settings.quality.scorers):
        for key, column in scorer.source_columns.items():
            kinds = [schema.field(own).type for schema in schemas if (own := find(column, schema.names))]
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
    spelled: dict[str, Any] = {}
    settings_of = list(named_columns(settings))
    columns = document_columns(shards, settings.source, {column for _, column, _ in settings_of})
    for key, column, instead in settings_of if columns is not None else []:
        own = find(column, columns or {})
        if own is None:
            others = [*instead, *(name for name in columns or {} if name not in {"text", *MEASURED.names})]
            remedy = "" if settings.source.extra_columns == "all" else "; source.extra_columns adds some of the source"
            raise ColumnError(
                f"{key}: no document will have a column {column!r}, it may be one of {', '.join(others)}{remedy}"
            )
        if own != column:
            prefer = settings.ingest.copies.prefer
            spelled[key] = {own: prefer[column]} if key == "ingest.copies.prefer" else own
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
    for index, column in enumerate(settings.ingest.groups or []):
        yield f"ingest.groups.{index}", column, []
    if settings.selection.group_column is not None:
        yield "selection.group_column", settings.selection.group_column, []
    if settings.selection.groups is not None:
        yield "selection.groups.column", settings.selection.groups.column, []
    if settings.quality.by is not None:
        yield "quality.by", settings.quality.by, []
    if settings.materialize.layout != FLAT:
        yield "materialize.layout", settings.materialize.layout, [FLAT]
    for index, column in enumerate(settings.report.by):
        yield f"report.by.{index}", column, []
