"""Read a source file of any format as batches of Arrow columns."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fineweb_mask.models.columns import ColumnTypeError, is_text, locate, plain_type, to_numbers, value_at
from fineweb_mask.models.documents import conform
from fineweb_mask.models.names import alike, find
from fineweb_mask.models.schemas import FINEWEB, RESERVED_COLUMNS
from fineweb_mask.models.settings import SourceSettings
from fineweb_mask.tasks.processes.texts import with_texts
from fineweb_mask.tasks.source.discovery import LARGEST_DOCUMENT, Key, SourceShard, fingerprint_of
from fineweb_mask.tasks.source.jsonl import jsonl_records, jsonl_schema, record_batches
from fineweb_mask.tasks.source.unpacking import PACKED, UnpackingError
from fineweb_mask.tasks.source.warc import COLUMNS as WARC_COLUMNS
from fineweb_mask.tasks.source.warc import BrokenWarcError, count_rows, warc_records
from fineweb_mask.tasks.storage.remote.errors import is_transient
from fineweb_mask.tasks.storage.remote.filesystem import (
    RemoteFile,
    invalidate_listing,
    is_local,
    open_filesystem,
)
from fineweb_mask.tasks.storage.remote.retries import attempt
from fineweb_mask.tasks.workspace.job import BadShardError

BATCH_ROWS = 1_000
BATCH_BYTES = 64 * 2**20
PIECE_ROWS = 20
"""Rows of Parquet read at a time, before their size is known."""
LARGEST = 8
"""Mean size of a row group's rows, in sizes of the largest document, above which it is not read at all."""
QUERY_COLUMNS = {"shard", "documents_file", "scores_file", "_folder", "_random", "_shard", "_row"}
"""Of the joins that write a dataset."""
TAKEN_NAMES = RESERVED_COLUMNS | QUERY_COLUMNS | set(FINEWEB.names)
INDEX = re.compile(r"__index_level_\d+__")
"""A column that pandas makes of an index without a name."""
BROKEN_FILE_ERRORS = (pa.ArrowException, UnpackingError, UnicodeError, BrokenWarcError, ColumnTypeError)


class NoTextColumnError(BadShardError):
    """A file has no column of the name that the texts' has."""


@contextmanager
def broken_files(explained: Callable[[Exception], Exception] | None = None) -> Iterator[None]:
    """End the block where a file cannot be read, or raise the error `explained`; what may pass is raised as it is."""
    try:
        yield
    except (*BROKEN_FILE_ERRORS, OSError) as error:
        if is_transient(error):
            raise
        if explained is not None:
            raise explained(error) from error


class ShardReader:
    """Streams one source file as batches with FineWeb's nine columns, then the extra ones.

    Parameters
    ----------
    shard
        The file.
    settings
        Names of the text and id columns, and the extra columns to keep.

    Attributes
    ----------
    rows
        Number of rows in the file.
    extra
        Arrow fields of the extra columns.
    as_text
        The file's types of columns that are kept as text because other files have other ones, by name.
    lost
        Numbers that did not fit, so far, by column.
    keys_differ
        Rows read in which a column of the file holds another value than the key of that name in its path, by name.
    charsets
        Pages of a crawl read, by the charset that their server named, or `none`.

    Raises
    ------
    BadShardError
        Here or while reading: if the file is damaged or changed, or a column is missing or of the wrong type.
    """

    largest = LARGEST_DOCUMENT

    def __init__(self, shard: SourceShard, settings: SourceSettings) -> None:
        self.shard = shard
        self.settings = settings
        self.as_text: dict[str, str] = {}
        self.lost: Counter[str] = Counter()
        self.keys_differ: Counter[str] = Counter()
        self.charsets: Counter[str] = Counter()
        self._rows_read = 0
        self._filesystem, self._path = open_filesystem(shard.url)
        self._fingerprint = self._current_fingerprint()
        if settings.fingerprint == "mtime" and self._fingerprint != shard.fingerprint:
            raise self._error("the file changed after the run started; run again")
        with broken_files(self._error):
            schema, self.rows = schema_and_rows(shard, self.largest, paths_of(shard, settings))
        is_empty = shard.format == "jsonl" and not self.rows  # without any row, there are no columns
        if not schema.names and not is_empty:
            raise self._error(f"none of its {self.rows:,} rows can be read")
        self._columns = columns_of(schema, shard, settings)
        if self._columns[0].kind is None and not is_empty:
            problem = f"no column {settings.text_column!r}, set source.text_column to one of {schema.names}"
            raise NoTextColumnError(f"{shard.relative}: {problem}")
        with broken_files(self._error):
            self.extra = self._extra_fields(schema.names)
        self._places = {one.name: one.place for one in self._columns}

    def _current_fingerprint(self) -> str:
        invalidate_listing(self._filesystem, self._path)
        with broken_files(self._error):
            info = attempt(self.shard.url, self._filesystem.info, self._path)
        if info["type"] != "file":
            raise self._error("this is a pipe, a socket or a device, or a link to one: it must be a file")
        if not info["size"] and self.shard.relative.lower().endswith(tuple(PACKED)):
            raise self._error("the file has 0 bytes: it is cut off")
        return fingerprint_of(info)

    def _check_unchanged(self) -> None:
        if self._current_fingerprint() != self._fingerprint:
            raise self._error("the file changed while it was read; run again")

    def _error(self, reason: object) -> BadShardError:
        place = f" after row {self._rows_read:,}" if self._rows_read else ""
        return BadShardError(f"{self.shard.relative}{place}: {reason}")

    def _extra_fields(self, names: Sequence[str]) -> list[pa.Field]:
        extra, remedy = self._columns[len(FINEWEB) :], "list the columns to keep in source.extra_columns, with"
        if taken := [one.own for one in extra if alike(one.name) in TAKEN_NAMES]:  # SQL ignores case
            raise self._error(f"column {taken[0]!r} has a name that the pipeline uses itself: {remedy}out it")
        times = Counter(alike(one.name) for one in extra)
        if twice := [one.own for one in extra if times[alike(one.name)] > 1]:
            same = [own for own in twice if alike(own) == alike(twice[0])]
            raise self._error(f"columns {same} differ in case only, or in spaces: {remedy} one of them")
        if missing := sorted(one.own for one in extra if one.kind is None):
            raise self._error(f"no column {missing[0]!r}, source.extra_columns may name {names}")
        return [pa.field(one.name, self._extra_type(one.name, one.place, one.kind)) for one in extra]

    def _extra_type(self, name: str, place: Sequence[str], kind: pa.DataType) -> pa.DataType:
        remedy = "list the columns to keep in source.extra_columns, without it"
        if not name or "\0" in name:
            raise self._error(f"column {name!r} has a name that SQL does not allow: {remedy}")
        if name in self.shard.as_text:
            self.as_text[name] = str(kind)
            return pa.string()
        if name in self.shard.whole and pa.types.is_floating(kind) and self.shard.format == "parquet":
            with open_parquet_source(self.shard.url) as file:
                batches = file.iter_batches(columns=[place[0]])
                if not any(to_numbers(value_at(batch, place), pa.int64())[1] for batch in batches):
                    return pa.int64()
        try:
            return plain_type(kind)
        except ColumnTypeError as error:
            raise self._error(f"column {name!r} {error}: {remedy}") from error

    def batches(self) -> Iterator[tuple[pa.RecordBatch, pa.Array | None]]:
        """Yield batches in file order, each with a string column of problems (null: none); None if it has none.

        A row with a problem was not read: its values are null. Rows of Parquet can only be `too_large`. A batch has at
        most 1,000 rows and, but for its last row, 64 MiB.
        """
        with self._read():
            found = self._parquet_batches() if self.shard.format == "parquet" else self._record_batches()
            for batch, problems in found:
                yield batch, problems
                self._rows_read += batch.num_rows

    @contextmanager
    def _read(self) -> Iterator[None]:
        """Explain the errors of the block, which reads the file, and check in the end that it is still the same."""
        with broken_files(self._error_or_change):
            yield
            self._check_unchanged()

    def _error_or_change(self, error: Exception) -> BadShardError:
        self._check_unchanged()
        return self._error(error)

    def _parquet_batches(self) -> Iterator[tuple[pa.RecordBatch, pa.Array | None]]:
        with open_parquet_source(self.shard.url) as file:
            wanted = {one.place[0] for one in self._columns}
            columns = [name for name in file.schema_arrow.names if name in wanted]
            pieces = (piece for group in range(file.num_row_groups) for piece in self._pieces(file, group, columns))
            yield from in_batches(map(self._conform, pieces), self.largest)

    def _conform(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch with the columns of documents, in which keys of the path stand where the file has no value."""
        batch = conform(batch, self._places, self.extra, self.lost)
        for name, value in keys_read(self.shard, self.settings).items():
            own = find(name, batch.schema.names)
            if own is None or value is None:
                continue
            place = batch.schema.get_field_index(own)
            field, column = batch.schema.field(place), batch.column(place)
            try:
                key = pa.scalar(value).cast(field.type)
                self.keys_differ[field.name] += pc.sum(pc.not_equal(column, key)).as_py() or 0
                batch = batch.set_column(place, field, pc.fill_null(column, key))
            except pa.ArrowException:  # the column is of another type
                self.keys_differ[field.name] += len(column)
        return batch

    def _pieces(self, file: pq.ParquetFile, group: int, columns: list[str]) -> Iterator[pa.RecordBatch]:
        """Yield a row group in batches so small that they fit into memory, whatever they hold."""
        metadata = file.metadata.row_group(group)
        found = [metadata.column(index) for index in range(metadata.num_columns)]
        found = [column for column in found if column.path_in_schema.split(".")[0] in columns]
        size, rows = sum(column.total_uncompressed_size for column in found), max(metadata.num_rows, 1)
        if size > LARGEST * self.largest * rows:
            raise self._error(
                f"row group {group} has {metadata.num_rows:,} rows of {size:,} bytes: "
                f"the mean is far above {self.largest:,}, the most of a document"
            )
        piece = max(1, min(PIECE_ROWS, BATCH_BYTES // max(size // rows, 1)))
        yield from file.iter_batches(piece, row_groups=[group], columns=columns)

    def _record_batches(self) -> Iterator[tuple[pa.RecordBatch, pa.Array | None]]:
        kinds = {one.own: field.type for one, field in zip(self._columns, (*FINEWEB, *self.extra), strict=True)}
        fields, lost = [pa.field(own, kind) for own, kind in kinds.items()], Counter[str]()
        as_text = {one.own for one in self._columns[1:] if one.name in ("id", "date") or one.name not in FINEWEB.names}
        paths = paths_of(self.shard, self.settings)
        if self.shard.format == "warc":
            records = with_texts(self._pages())
        else:
            records = jsonl_records(self.shard.url, self.shard.relative, self.largest, paths)
        for batch, problems in record_batches(records, fields, BATCH_ROWS, BATCH_BYTES, as_text, lost):
            yield self._conform(batch), problems
        self.lost += Counter({one.name: lost[one.own] for one in self._columns})

    def _pages(self) -> Iterator[dict[str, Any] | str]:
        """Yield the records of a crawl, and count the charsets that servers named."""
        for record in warc_records(self.shard, self.largest):
            if isinstance(record, dict) and "page" in record:
                self.charsets[record["charset"] or "none"] += 1
            yield record


class Column(NamedTuple):
    """A column that is kept of a file."""

    name: str  # in the documents
    place: tuple[str, ...]  # the names that lead to it in the file
    kind: pa.DataType | None  # None: the file has no such column

    @property
    def own(self) -> str:
        """The file's own name of the column, or the path to it."""
        return ".".join(self.place)


def columns_of(schema: pa.Schema, shard: SourceShard, settings: SourceSettings) -> list[Column]:
    """Return FineWeb's columns, then the extra ones of a file, found in whatever spelling.

    Keys in the file's path are columns, too. `shard.spelled` has the names that other files have for columns of this.
    """
    schema, asked = with_keys(schema, shard, settings), {"text": settings.text_column, "id": settings.id_column}
    found = [Column(name, *locate(asked.get(name, name), schema)) for name in FINEWEB.names]
    used = {one.place for one in found} | {(find(name, schema.names) or name,) for name in FINEWEB.names}
    if settings.extra_columns == "all":
        spelled = {alike(name): name for name in shard.spelled}
        own = [Column(spelled.get(alike(one.name), one.name), (one.name,), one.type) for one in schema]
        within = [one for path in shard.paths if len((one := Column(path, *locate(path, schema))).place) > 1]
        extra = [one for one in own if not INDEX.fullmatch(one.own)] + within
    else:
        extra = [Column(name, *locate(name, schema)) for name in settings.extra_columns]
    return found + [
        one for one in extra if one.place not in used and (one.kind or alike(one.name) not in FINEWEB.names)
    ]


def paths_of(shard: SourceShard, settings: SourceSettings) -> tuple[str, ...]:
    """Return the names of columns of a file that may be paths to values within others."""
    listed = [] if settings.extra_columns == "all" else settings.extra_columns
    return tuple(name for name in (settings.text_column, settings.id_column, *listed, *shard.paths) if "." in name)


def keys_read(shard: SourceShard, settings: SourceSettings) -> dict[str, Key]:
    """Return the keys of a file's path that are columns: all but those of names that the pipeline uses itself."""
    own = {"text", "id", settings.text_column.lower(), settings.id_column.lower()}
    taken = (TAKEN_NAMES - set(FINEWEB.names)) | own
    return {name: value for name, value in shard.keys if name.lower() not in taken}


def with_keys(schema: pa.Schema, shard: SourceShard, settings: SourceSettings) -> pa.Schema:
    """Return the columns of a file and those of the keys in its path."""
    for name, value in keys_read(shard, settings).items():
        if find(name, schema.names) is None:
            schema = schema.append(pa.field(name, pa.string() if value is None else pa.scalar(value).type))
    return schema


def schema_and_rows(
    shard: SourceShard, largest: int = LARGEST_DOCUMENT, paths: Sequence[str] = ()
) -> tuple[pa.Schema, int]:
    """Return the columns and the number of rows of a file; of JSON Lines, with those that paths lead to."""
    if shard.format == "jsonl":
        return jsonl_schema(jsonl_records(shard.url, shard.relative, largest, paths), shard.whole)
    if shard.format == "warc":
        return WARC_COLUMNS, count_rows(shard)
    with open_parquet_source(shard.url) as file:
        return file.schema_arrow, file.metadata.num_rows


def open_parquet_source(url: str) -> pq.ParquetFile:
    """Open a Parquet file of the source."""
    filesystem, path = open_filesystem(url)
    file = pa.OSFile(path) if is_local(filesystem) else RemoteFile(url)
    return pq.ParquetFile(file, page_checksum_verification=True)


def in_batches(
    pieces: Iterable[pa.RecordBatch], largest: int = LARGEST_DOCUMENT
) -> Iterator[tuple[pa.RecordBatch, pa.Array | None]]:
    """Join small batches into batches of 1,000 rows or 64 MiB, with the problems of rows that are too large."""
    pending: list[tuple[pa.RecordBatch, NDArray[np.bool_]]] = []
    rows = size = 0
    for piece in pieces:
        sizes = row_bytes(piece)
        is_large = sizes > largest
        if is_large.any():
            piece = piece.take(pa.array(np.arange(len(sizes)), mask=is_large))  # noqa: PLW2901 - frees the values
        small = int(sizes[~is_large].sum())
        if pending and (rows + len(sizes) > BATCH_ROWS or size + small > BATCH_BYTES):
            yield _joined(pending)
            pending, rows, size = [], 0, 0
        pending.append((piece, is_large))
        rows, size = rows + len(sizes), size + small
    if pending:
        yield _joined(pending)


def row_bytes(batch: pa.RecordBatch) -> NDArray[np.int64]:
    """Return the bytes of the strings of each row, (n,), those of nested columns aside."""
    total = np.zeros(batch.num_rows, dtype=np.int64)
    for column in batch.columns:
        if is_text(column.type) and not pa.types.is_null(column.type):
            total += pc.fill_null(pc.binary_length(column), 0).to_numpy()
    return total


def _joined(pending: list[tuple[pa.RecordBatch, NDArray[np.bool_]]]) -> tuple[pa.RecordBatch, pa.Array | None]:
    """Return one batch, and the problems of its rows, if there are any."""
    batch = pa.concat_batches([piece for piece, _ in pending])
    is_large = np.concatenate([large for _, large in pending])
    if not is_large.any():
        return batch, None
    return batch, pc.if_else(pa.array(is_large), "too_large", pa.scalar(None, pa.string()))
