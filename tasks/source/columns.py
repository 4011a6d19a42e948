"""Fix the columns of all documents before any work starts, and check those that a recipe names.

A file may hold others than those that were looked at do: what is not among the columns is not kept, and told.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import pyarrow as pa

from fineweb_mask.models.columns import BEYOND, KEPT_TYPES, common_type, is_text, kept_type, locate
from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.losses import names_groups
from fineweb_mask.models.names import alike, find, inside
from fineweb_mask.models.schemas import FINEWEB, MEASURED, RESERVED_COLUMNS, ROW, SOURCE_ROW, documents_schema
from fineweb_mask.models.settings import FLAT, PipelineSettings, SourceSettings
from fineweb_mask.models.settings.output import TEXT_IS_NO_GROUP
from fineweb_mask.tasks.source.discovery import SourceShard
from fineweb_mask.tasks.source.opening import BROKEN_FILE_ERRORS
from fineweb_mask.tasks.source.sample import FILES, ROWS, Known, first_rows, looked_at, read_columns

QUERY_COLUMNS = {"shard", "documents_file", "scores_file", "_folder", "_random", "_shard", "_row"}
"""Of the joins that write a dataset."""

TAKEN_NAMES = RESERVED_COLUMNS | QUERY_COLUMNS | set(FINEWEB.names)

INDEX = re.compile(r"__index_level_\d+__")
"""A column that pandas makes of an index without a name."""


class ColumnError(SettingsError):
    """A setting names a column that the documents will not have, or a file has columns that cannot be kept."""


class Column(NamedTuple):
    """A column of a file."""

    name: str  # in the documents
    place: tuple[str, ...]  # the names that lead to it in the file
    kind: pa.DataType | None  # None: the file has no such column


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
    for name in (name for name, found in kinds.items() if {pa.int64(), pa.float64()} == set(found) - {pa.null()}):
        if all(_is_whole(shard, names[name]) for shard, _ in files):
            kinds[name] = [pa.int64()]
    is_whole = bool(files) and all(known.rows is not None for _, known in files)
    if is_whole and (missing := [name for key, name in names.items() if not kinds[key]]):
        found = list(dict.fromkeys(name for _, known in files for name in known.schema.names))
        raise ColumnError(f"no column {missing[0]!r}, source.extra_columns may name {found}: check its spelling")
    columns = tuple((name, str(common_type(kinds[key]))) for key, name in names.items())
    return [shard.model_copy(update={"columns": columns}) for shard in shards]


def type_of_keys(values: Collection[str]) -> pa.DataType:
    """Return the type whose values give the same texts again.

    >>> [str(type_of_keys(values)) for values in (["2024", "-1"], ["0.5"], ["007"], ["1", "b"], ["nan"], [])]
    ['int64', 'double', 'string', 'string', 'string', 'null']
    """
    for kind, read, most in ((pa.int64(), int, BEYOND), (pa.float64(), float, math.inf)):
        with suppress(ValueError):
            if values and all(str(read(value)) == value and abs(read(value)) < most for value in values):
                return kind
    return pa.string() if values else pa.null()


def _is_whole(shard: SourceShard, name: str) -> bool:
    """Return whether all fractions of a column in the first rows of a file are whole, as pandas writes them."""
    values = [inside(row, name) for row in first_rows(shard, ROWS, name)[0]]
    return all(value.is_integer() for value in values if isinstance(value, float) and math.isfinite(value))


def extra_columns(schema: pa.Schema, settings: SourceSettings, named: Sequence[str] = ()) -> list[Column]:
    """Return the columns of a file that are kept beside FINEWEB's.

    Raises
    ------
    ColumnError
        If one has a name that a dataset cannot have, or two have the same.
    """
    if settings.extra_columns == "all":
        used = {find(name, schema.names) for name in (settings.text_column, settings.id_column, *FINEWEB.names)}
        extra = [Column(one.name, (one.name,), one.type) for one in schema if one.name not in used]
        extra = [one for one in extra if not INDEX.fullmatch(one.name)]
        paths = {alike(name): name for name in named if "." in name}.values()
        extra += [one for path in paths if len((one := Column(path, *locate(path, schema))).place) > 1]
    else:
        listed = [name for name in settings.extra_columns if alike(name) not in FINEWEB.names]
        extra = [Column(name, *locate(name, schema)) for name in listed]
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


def check_text_column(shards: Sequence[SourceShard], source: SourceSettings) -> None:
    """Check that a source file has the column of the texts.

    Raises
    ------
    ColumnError
        If none has it. Files that cannot be read, or are without rows, say nothing; ingest reports them.
    """
    found: dict[str, None] = {}
    for _, known in looked_at(shards):
        if known.rows is None or locate(source.text_column, known.schema)[1] is not None:
            return
        found |= dict.fromkeys(known.schema.names)
    if found:
        raise ColumnError(
            f"source.text_column: no source file has a column {source.text_column!r}, "
            f"it may be one of {', '.join(map(repr, found))}"
        )


def check_texts(files: Sequence[SourceShard], setting: str, text_column: str = "text") -> None:
    """Check that the first of some Parquet files can be opened, and hold a column of texts, or a workspace's documents.

    Raises
    ------
    ColumnError
        If one cannot or does not; the message names the `setting`. Those of other formats say nothing.
    """
    for file in [file for file in files if file.format == "parquet"][:FILES]:
        try:
            names = read_columns(file).schema
        except (*BROKEN_FILE_ERRORS, OSError) as error:
            reason = " ".join(str(error).split()).rstrip(".")
            raise ColumnError(f"{setting}: {file.relative} cannot be read: {reason}: give a whole file") from error
        if locate(text_column, names)[1] is None and not set(MEASURED.names) <= set(names.names):
            raise ColumnError(
                f"{setting}: {file.relative} has no column {text_column!r}, its columns are {', '.join(names.names)}: "
                "name its column of texts so"
            )


def check_columns(settings: PipelineSettings, shards: Sequence[SourceShard]) -> dict[str, Any]:
    """Check that the documents of settled shards will have the columns that the recipe names.

    The settings that name a column in another spelling are returned as they are to be, by their keys.

    Raises
    ------
    ColumnError
        If no readable source file has a column, `report.by` names the text, or a column of scores holds texts.
    """
    if "text" in settings.report.by:
        raise ColumnError(f"report.by: {TEXT_IS_NO_GROUP}")
    check_text_column(shards, settings.source)
    spelled = dict[str, Any]()
    if (columns := document_columns(shards)) is None:
        return spelled
    for key, column, instead in named_columns(settings):
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
        if key.startswith("quality.scorers") and is_text(columns[own]):
            raise ColumnError(f"{key}: {column!r} must hold numbers, its type is {columns[own]}: name another")
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
