"""Read a source file of any format as batches of Arrow columns."""

import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fineweb_mask.models.columns import ColumnTypeError, is_text, plain_type
from fineweb_mask.models.documents import conform
from fineweb_mask.models.schemas import FINEWEB, RESERVED_COLUMNS
from fineweb_mask.models.settings import SourceSettings
from fineweb_mask.tasks.processes.texts import with_texts
from fineweb_mask.tasks.source.discovery import SourceShard, fingerprint_of
from fineweb_mask.tasks.source.jsonl import jsonl_records, jsonl_schema, record_batches
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
BROKEN_FILE_ERRORS = (pa.ArrowException, EOFError, zlib.error, UnicodeError, BrokenWarcError, ColumnTypeError)


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

    Raises
    ------
    BadShardError
        Here or while reading: if the file is damaged or changed, or a column is missing or of the wrong type.
    """

    def __init__(self, shard: SourceShard, settings: SourceSettings) -> None:
        self.shard = shard
        self.settings = settings
        self.as_text: dict[str, str] = {}
        self._rows_read = 0
        self._filesystem, self._path = open_filesystem(shard.url)
        self._fingerprint = self._current_fingerprint()
        if settings.fingerprint == "mtime" and self._fingerprint != shard.fingerprint:
            raise self._error("the file changed after the run started; run again")
        with broken_files(self._error):
            schema, self.rows = schema_and_rows(shard, settings.max_document_bytes)
        is_empty = shard.format == "jsonl" and not self.rows  # without any row, there are no columns
        if not schema.names and not is_empty:
            raise self._error(f"none of its {self.rows:,} rows can be read")
        if settings.text_column not in schema.names and not is_empty:
            problem = f"no column {settings.text_column!r}, set source.text_column to one of {schema.names}"
            raise NoTextColumnError(f"{shard.relative}: {problem}")
        self.extra = self._extra_fields(schema)

    def _current_fingerprint(self) -> str:
        invalidate_listing(self._filesystem, self._path)
        with broken_files(self._error):
            info = attempt(self.shard.url, self._filesystem.info, self._path)
        if info["type"] != "file":
            raise self._error("this is a pipe, a socket or a device, or a link to one: it must be a file")
        if not info["size"] and self.shard.relative.lower().endswith((".gz", ".zst")):
            raise self._error("the file has 0 bytes: it is cut off")
        return fingerprint_of(info)

    def _check_unchanged(self) -> None:
        if self._current_fingerprint() != self._fingerprint:
            raise self._error("the file changed while it was read; run again")

    def _error(self, reason: object) -> BadShardError:
        place = f" after row {self._rows_read:,}" if self._rows_read else ""
        return BadShardError(f"{self.shard.relative}{place}: {reason}")

    def _extra_fields(self, schema: pa.Schema) -> list[pa.Field]:
        known = {*FINEWEB.names, self.settings.text_column, self.settings.id_column}
        wanted = schema.names if self.settings.extra_columns == "all" else self.settings.extra_columns
        names = [name for name in wanted if name not in known]
        if taken := [name for name in names if name.lower() in TAKEN_NAMES]:  # SQL ignores case
            raise self._error(
                f"column {taken[0]!r} has a name that the pipeline uses itself: "
                "list the columns to keep in source.extra_columns, without it"
            )
        if alike := [name for name, times in Counter(name.lower() for name in names).items() if times > 1]:
            raise self._error(
                f"columns {[name for name in names if name.lower() == alike[0]]} differ in case only: "
                "list the columns to keep in source.extra_columns, with one of them"
            )
        if missing := set(names).difference(schema.names):
            raise self._error(f"no column {sorted(missing)[0]!r}, source.extra_columns may name {schema.names}")
        return [pa.field(name, self._extra_type(name, schema.field(name).type)) for name in names]

    def _extra_type(self, name: str, kind: pa.DataType) -> pa.DataType:
        remedy = "list the columns to keep in source.extra_columns, without it"
        if not name or "\0" in name:
            raise self._error(f"column {name!r} has a name that SQL does not allow: {remedy}")
        if name in self.shard.as_text:
            self.as_text[name] = str(kind)
            return pa.string()
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

    @property
    def _wanted(self) -> set[str]:
        """The columns that are read of a Parquet file."""
        own = {self.settings.text_column, self.settings.id_column}
        return {*FINEWEB.names, *own, *(field.name for field in self.extra)}

    def _parquet_batches(self) -> Iterator[tuple[pa.RecordBatch, pa.Array | None]]:
        with open_parquet_source(self.shard.url) as file:
            columns = [name for name in file.schema_arrow.names if name in self._wanted]
            pieces = (piece for group in range(file.num_row_groups) for piece in self._pieces(file, group, columns))
            yield from in_batches(map(self._conform, pieces), self.settings.max_document_bytes)

    def _conform(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return conform(batch, self.settings.text_column, self.settings.id_column, self.extra)

    def _pieces(self, file: pq.ParquetFile, group: int, columns: list[str]) -> Iterator[pa.RecordBatch]:
        """Yield a row group in batches so small that they fit into memory, whatever they hold."""
        metadata = file.metadata.row_group(group)
        found = [metadata.column(index) for index in range(metadata.num_columns)]
        found = [column for column in found if column.path_in_schema.split(".")[0] in columns]
        size, rows = sum(column.total_uncompressed_size for column in found), max(metadata.num_rows, 1)
        if size > LARGEST * self.settings.max_document_bytes * rows:
            raise self._error(
                f"row group {group} has {metadata.num_rows:,} rows of {size:,} bytes: "
                "the mean is far above source.max_document_bytes"
            )
        piece = max(1, min(PIECE_ROWS, BATCH_BYTES // max(size // rows, 1)))
        yield from file.iter_batches(piece, row_groups=[group], columns=columns)

    def _record_batches(self) -> Iterator[tuple[pa.RecordBatch, pa.Array | None]]:
        fields = [
            pa.field(self.settings.text_column, pa.string()),
            pa.field(self.settings.id_column, pa.string()),
            *(field for field in FINEWEB if field.name not in ("text", "id")),
            *self.extra,
        ]
        largest = self.settings.max_document_bytes
        if self.shard.format == "warc":
            records = with_texts(warc_records(self.shard, largest))
        else:
            records = jsonl_records(self.shard.url, self.shard.relative, largest)
        for batch, problems in record_batches(records, fields, BATCH_ROWS, BATCH_BYTES):
            yield self._conform(batch), problems


def schema_and_rows(shard: SourceShard, max_document_bytes: int) -> tuple[pa.Schema, int]:
    """Return the columns and the number of rows of a file."""
    if shard.format == "jsonl":
        return jsonl_schema(shard, max_document_bytes)
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
    pieces: Iterable[pa.RecordBatch], max_document_bytes: int
) -> Iterator[tuple[pa.RecordBatch, pa.Array | None]]:
    """Join small batches into batches of 1,000 rows or 64 MiB, with the problems of rows that are too large."""
    pending: list[tuple[pa.RecordBatch, NDArray[np.bool_]]] = []
    rows = size = 0
    for piece in pieces:
        sizes = row_bytes(piece)
        is_large = sizes > max_document_bytes
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
