"""Fix the columns of all documents before any work starts, and check those that a recipe names.

A file may hold others than those that were looked at do: what is not among the columns is not kept, and told.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

import pyarrow as pa

from fineweb_mask.models.columns import BEYOND, KEPT_TYPES, common_type, is_text, kept_type, locate
from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.losses import names_groups
from fineweb_mask.models.names import alike, find
from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.models.schemas import FINEWEB, MEASURED, RESERVED_COLUMNS, ROW, SOURCE_ROW, documents_schema
from fineweb_mask.models.settings import FLAT, PipelineSettings, SourceSettings
from fineweb_mask.tasks.source.discovery import LARGEST_DOCUMENT, SourceShard
from fineweb_mask.tasks.source.jsonl import inferred_type, jsonl_records
from fineweb_mask.tasks.source.opening import PACKED, broken_files, open_parquet_source
from fineweb_mask.tasks.source.warc import COLUMNS as WARC_COLUMNS
from fineweb_mask.tasks.storage.atomic import atomic_write
from fineweb_mask.tasks.storage.remote.copies import read_text
from fineweb_mask.tasks.workspace.references import digest
from fineweb_mask.tasks.workspace.workspace import Workspace

FILES, ROWS = 16, 1_000
"""Files that are looked at, evenly spaced, and rows of each that has no list of its columns."""
REMEMBERED = 64
"""Files of which one is still there, unchanged, if the corpus is the same."""
BYTES_OF_ROW, SHARE_PACKED = 2_000, 0.3
"""By which the rows of a crawl are estimated, and how large a compressed file is beside its content."""
QUERY_COLUMNS = {"shard", "documents_file", "scores_file", "_folder", "_random", "_shard", "_row"}
"""Of the joins that write a dataset."""
TAKEN_NAMES = RESERVED_COLUMNS | QUERY_COLUMNS | set(FINEWEB.names)


class ColumnError(SettingsError):
    """A setting names a column that the documents will not have, or a file has columns that cannot be kept."""


class SourceColumn(NamedTuple):
    """A column of a file."""

    name: str  # in the documents
    place: tuple[str, ...]  # the names that lead to it in the file
    kind: pa.DataType | None  # None: the file has no such column


class Known(NamedTuple):
    """What is known of a file before it is read as a whole."""

    schema: pa.Schema  # of JSON Lines, of the first rows; without columns if it cannot be read
    rows: int  # as far as they are not counted, an estimate by the file's size
    is_counted: bool


def read_columns(shard: SourceShard, largest: int = LARGEST_DOCUMENT) -> Known:
    """Return the columns of a file, of JSON Lines those of its first rows.

    Raises
    ------
    BROKEN_FILE_ERRORS, OSError
        If it cannot be read.
    """
    if shard.format == "warc":
        return Known(WARC_COLUMNS, shard.bytes // BYTES_OF_ROW, False)
    if shard.format == "parquet":
        with open_parquet_source(shard.url) as file:
            return Known(file.schema_arrow, file.metadata.num_rows, True)
    records = list(islice(jsonl_records(shard.url, shard.relative, largest), ROWS))
    inferred = inferred_type(record for record in records if isinstance(record, dict))
    schema, rows = pa.schema([] if pa.types.is_null(inferred) else list(inferred)), len(records)
    if rows < ROWS:
        return Known(schema, rows, True)
    size = sum(len(str(record)) for record in records)
    whole = shard.bytes / SHARE_PACKED if shard.relative.lower().endswith(PACKED) else shard.bytes
    return Known(schema, round(whole / size * rows), False)


@lru_cache(maxsize=1_000)
def known_columns(shard: SourceShard) -> Known:
    """Return the columns of a file, none if it is empty or cannot be read, which ingest reports."""
    raise_if_stopped()
    with broken_files():
        if shard.bytes:
            return read_columns(shard)
    return Known(pa.schema([]), 0, False)


def looked_at(shards: Sequence[SourceShard]) -> list[tuple[SourceShard, Known]]:
    """Return some files, evenly spaced, and what is known of their columns, those aside that cannot be read."""
    files = [shard.model_copy(update={"columns": None}) for shard in shards if shard.bytes]
    files = files[:: max(1, -(-len(files) // FILES))]
    with ThreadPoolExecutor(FILES) as readers:
        known = zip(files, readers.map(known_columns, files), strict=True)
    return [(shard, found) for shard, found in known if found.schema.names]


def number_of_rows(shards: Sequence[SourceShard]) -> tuple[int, bool]:
    """Return how many rows files have, and whether they were counted: those of many files, or long ones, are not."""
    found = looked_at(shards)
    rows, size = sum(known.rows for _, known in found), sum(shard.bytes for shard, _ in found)
    if len(shards) <= FILES:
        return rows, all(known.is_counted for _, known in found)
    return round(sum(shard.bytes for shard in shards) / max(1, size) * rows), False


def settle(
    shards: Sequence[SourceShard],
    settings: SourceSettings,
    named: Sequence[str] = (),
    files: Sequence[tuple[SourceShard, Known]] | None = None,
) -> list[SourceShard]:
    """Return the shards with the columns that all documents have beside FINEWEB's.

    These are those of the `files` that are looked at, by default some of the shards, and the keys in the paths of all.
    A column that files spell differently has the name that the first file gives it. One of types that have nothing in
    common is text. Columns that are `named` may be paths to values within others.

    Raises
    ------
    ColumnError
        If no file has a column of `source.extra_columns`.
    """
    files = looked_at(shards) if files is None else files
    names, kinds = dict[str, str](), defaultdict[str, list[pa.DataType]](list)
    values = defaultdict[str, set[str]](set)  # of keys
    for _, known in files:
        with suppress(ColumnError):  # which ingest reports
            for column in extra_columns(known.schema, settings, named):
                names.setdefault(alike(column.name), column.name)
                kinds[alike(column.name)] += [] if column.kind is None else [kept_type(column.kind)]
    of_files = {name for name, found in kinds.items() if found}
    for name, value in (key for shard in shards for key in keys_read(shard, settings).items()):
        is_kept = settings.extra_columns == "all" or alike(name) in names
        if is_kept and alike(name) not in of_files and name not in FINEWEB.names:
            names.setdefault(alike(name), name)
            values[alike(name)].update(() if value is None else (value,))
    kinds |= {name: [type_of_keys(found)] for name, found in values.items()}
    is_whole = bool(files) and all(known.is_counted for _, known in files)
    if is_whole and (missing := [name for key, name in names.items() if not kinds[key]]):
        found = list(dict.fromkeys(name for _, known in files for name in known.schema.names))
        raise ColumnError(f"no column {missing[0]!r}, source.extra_columns may name {found}: check its spelling")
    columns = tuple((name, str(common_type(kinds[key]))) for key, name in names.items())
    return [shard.model_copy(update={"columns": columns}) for shard in shards]


def type_of_keys(values: Collection[str]) -> pa.DataType:
    """Return the type of the values of a key: whole numbers if all are written as such, else text.

    >>> [str(type_of_keys(values)) for values in (["2024", "-1"], ["0.5"], ["007"], ["1", "b"], [])]
    ['int64', 'string', 'string', 'string', 'null']
    """
    with suppress(ValueError):
        if values and all(str(int(value)) == value and abs(int(value)) < BEYOND for value in values):
            return pa.int64()
    return pa.string() if values else pa.null()


def extra_columns(schema: pa.Schema, settings: SourceSettings, named: Sequence[str] = ()) -> list[SourceColumn]:
    """Return the columns of a file that are kept beside FINEWEB's.

    Raises
    ------
    ColumnError
        If one has a name that a dataset cannot have, or two have the same.
    """
    if settings.extra_columns == "all":
        used = {find(name, schema.names) for name in (settings.text_column, settings.id_column, *FINEWEB.names)}
        extra = [SourceColumn(one.name, (one.name,), one.type) for one in schema if one.name not in used]
        paths = {alike(name): name for name in named if "." in name}.values()
        extra += [one for path in paths if len((one := SourceColumn(path, *locate(path, schema))).place) > 1]
    else:
        listed = [name for name in settings.extra_columns if alike(name) not in FINEWEB.names]
        extra = [SourceColumn(name, *locate(name, schema)) for name in listed]
    remedy = "list the columns to keep in source.extra_columns, with"
    if taken := [one.name for one in extra if alike(one.name) in TAKEN_NAMES]:  # SQL ignores case
        raise ColumnError(f"column {taken[0]!r} has a name that the pipeline uses itself: {remedy}out it")
    times = Counter(alike(one.name) for one in extra)
    if twice := [one.name for one in extra if times[alike(one.name)] > 1]:
        same = [name for name in twice if alike(name) == alike(twice[0])]
        raise ColumnError(f"columns {same} differ in case only, or in spaces: {remedy} one of them")
    if unnamed := [one.name for one in extra if not one.name or "\0" in one.name]:
        raise ColumnError(f"column {unnamed[0]!r} has a name that SQL does not allow: {remedy}out it")
    return extra


def keys_read(shard: SourceShard, settings: SourceSettings) -> dict[str, str | None]:
    """Return the keys of a file's path that are columns: all but those of names that the pipeline uses itself."""
    own = {"text", "id", settings.text_column.lower(), settings.id_column.lower()}
    taken = (TAKEN_NAMES - set(FINEWEB.names)) | own
    return {name: value for name, value in shard.keys if name.lower() not in taken}


def document_columns(shards: Sequence[SourceShard]) -> dict[str, pa.DataType] | None:
    """Return the columns that the documents of settled shards will have, None if no file could be read."""
    if not looked_at(shards):
        return None
    columns = {field.name: field.type for field in documents_schema()}
    del columns[ROW.name], columns[SOURCE_ROW.name]
    return columns | {name: KEPT_TYPES[kind] for name, kind in shards[0].columns or ()}


def columns_of(file: SourceShard, setting: str) -> Known:
    """Return the columns of a file that is not set aside where it cannot be read, but ends the run.

    Raises
    ------
    ColumnError
        If it cannot be read; the message names the `setting`.
    """
    explained = f"{setting}: {file.relative} cannot be read"
    with broken_files(lambda error: ColumnError(f"{explained}: {error}: give a whole file")):
        schema, rows, is_counted = read_columns(file)
    return Known(schema, rows, is_counted)


def check_text_column(files: Sequence[SourceShard], setting: str, text_column: str = "text") -> None:
    """Check that a file has the column of the texts.

    Raises
    ------
    ColumnError
        If none has it; the message names the `setting`. Files that cannot be read, or are without rows, say nothing.
    """
    found: dict[str, None] = {}
    for _, (schema, _, is_counted) in looked_at(files):
        if not is_counted or locate(text_column, schema)[1] is not None:
            return
        found |= dict.fromkeys(schema.names)
    if found:
        raise ColumnError(
            f"{setting}: no file has a column {text_column!r}, it may be one of {', '.join(map(repr, found))}"
        )


def check_columns(settings: PipelineSettings, shards: Sequence[SourceShard]) -> None:
    """Check that the documents of settled shards will have the columns that the recipe names.

    Raises
    ------
    ColumnError
        If no readable source file has a column, or one holds what it cannot be used for.
    """
    check_text_column(shards, "source.text_column", settings.source.text_column)
    if (columns := document_columns(shards)) is None:
        return
    for key, column in settings.named_columns.items():
        if (kind := columns.get(column)) is None:
            spelled = [] if (own := find(column, columns)) is None else [own]
            instead = [FLAT] if key == "materialize.layout" else []
            others = [*instead, *(name for name in columns if name not in {"text", *MEASURED.names})]
            raise ColumnError(
                f"{key}: no document will have a column {column!r}, it may be one of {', '.join(spelled or others)}"
            )
        if key.startswith("report.by") and not names_groups(kind):
            raise ColumnError(
                f"{key}: {column!r} must hold text, whole numbers or booleans, its type is {kind}: name another"
            )
        if key.startswith("quality.scorers") and is_text(kind):
            raise ColumnError(f"{key}: {column!r} must hold numbers, its type is {kind}: name another")


def remembered_columns(
    workspace: Workspace, settings: PipelineSettings, shards: Sequence[SourceShard]
) -> tuple[tuple[str, str], ...] | None:
    """Return the columns and types that an earlier run fixed by these settings, if a file it read is still there."""
    record = _remembered(workspace).get(_columns_key(settings))
    files = {(shard.name, shard.fingerprint) for shard in shards}
    if record is None or not files.intersection(map(tuple, record["files"])):
        return None
    return tuple((name, kind) for name, kind in record["columns"])


def remember_columns(workspace: Workspace, settings: PipelineSettings, shards: Sequence[SourceShard]) -> None:
    """Remember the columns of a corpus's documents, so that they stay the same while it grows."""
    if not shards or shards[0].columns is None:
        return
    with workspace.alone():
        if remembered_columns(workspace, settings, shards) is None:
            some = shards[:: -(-len(shards) // REMEMBERED)]
            files = [(shard.name, shard.fingerprint) for shard in some]
            records = _remembered(workspace) | {
                _columns_key(settings): {"files": files, "columns": shards[0].columns},
            }
            with atomic_write(workspace.columns) as partial:
                partial.write_text(json.dumps(records, indent=1) + "\n")


def _remembered(workspace: Workspace) -> dict[str, Any]:
    """Return the files and columns of earlier runs, by digests of their settings; of a damaged record nothing."""
    try:
        found = json.loads(read_text(workspace.columns))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _columns_key(settings: PipelineSettings) -> str:
    """Return a digest of what the columns depend on, beside the files."""
    source, paths = settings.source, {column for column in settings.named_columns.values() if "." in column}
    return digest([source.text_column, source.id_column, source.extra_columns, sorted(paths)])
