"""Read a source file of any format as batches of Arrow columns."""

import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fineweb_mask.models.documents import ColumnTypeError, conform
from fineweb_mask.models.schemas import FINEWEB, RESERVED_COLUMNS
from fineweb_mask.models.settings import SourceSettings
from fineweb_mask.tasks.source.discovery import SourceShard, fingerprint_of
from fineweb_mask.tasks.source.jsonl import jsonl_batches, jsonl_schema
from fineweb_mask.tasks.storage.errors import is_transient
from fineweb_mask.tasks.storage.filesystem import invalidate_listing, is_local, open_filesystem
from fineweb_mask.tasks.storage.remote_file import RemoteFile
from fineweb_mask.tasks.storage.retries import attempt
from fineweb_mask.tasks.workspace.job import BadShardError

BATCH_ROWS = 1_000
QUERY_COLUMNS = {"shard", "documents_file", "scores_file", "texts_file", "_folder", "_random", "_shard", "_row"}
"""Of the joins that write a dataset."""
TAKEN_NAMES = RESERVED_COLUMNS | QUERY_COLUMNS | set(FINEWEB.names)
BROKEN_FILE_ERRORS = (pa.ArrowException, EOFError, zlib.error, UnicodeError)


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

    Raises
    ------
    BadShardError
        Here or while reading: if the file is damaged or changed, or a column is missing or of the wrong type.
    """

    def __init__(self, shard: SourceShard, settings: SourceSettings) -> None:
        self.shard = shard
        self.settings = settings
        self._filesystem, self._path = open_filesystem(shard.url)
        self._fingerprint = self._current_fingerprint()
        if settings.fingerprint == "mtime" and self._fingerprint != shard.fingerprint:
            raise self._error("the file changed after the run started; run again")
        try:
            schema, self.rows = self._schema_and_rows()
        except (*BROKEN_FILE_ERRORS, OSError) as error:
            if is_transient(error):
                raise
            raise self._error(error) from error
        if settings.text_column not in schema.names:
            raise self._error(f"no column {settings.text_column!r}, set source.text_column to one of {schema.names}")
        self.extra = self._extra_fields(schema)

    def _current_fingerprint(self) -> str:
        invalidate_listing(self._filesystem, self._path)
        try:
            return fingerprint_of(attempt(self.shard.url, self._filesystem.info, self._path))
        except OSError as error:
            if is_transient(error):
                raise
            raise self._error(error) from error

    def _check_unchanged(self) -> None:
        if self._current_fingerprint() != self._fingerprint:
            raise self._error("the file changed while it was read; run again")

    def _error(self, reason: object) -> BadShardError:
        return BadShardError(f"{self.shard.relative}: {reason}")

    def _extra_fields(self, schema: pa.Schema) -> list[pa.Field]:
        known = {*FINEWEB.names, self.settings.text_column, self.settings.id_column}
        if self.settings.extra_columns == "all":
            names = [name for name in schema.names if name not in known]
        else:
            names = [name for name in self.settings.extra_columns if name not in known]
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
        if wide := [name for name in names if pa.types.is_decimal256(schema.field(name).type)]:
            raise self._error(
                f"column {wide[0]!r} holds decimals of more than 38 digits, which DuckDB does not support: "
                "list the columns to keep in source.extra_columns, without it"
            )
        return [pa.field(name, schema.field(name).type) for name in names]

    def batches(self) -> Iterator[tuple[pa.RecordBatch, pa.Array | None]]:
        """Yield batches in file order, each with a string column of problems (null: none); None if it has none.

        A row with a problem, which only JSON Lines can have, could not be read: its values are null.
        """
        rows = self._parquet_batches() if self.shard.format == "parquet" else self._jsonl_batches()
        with self._read():
            for batch, problems in rows:
                yield conform(batch, self.settings.text_column, self.settings.id_column, self.extra), problems

    def texts(self, rows: NDArray[np.int64]) -> Iterator[pa.Array]:
        """Yield the texts of ascending rows, (n,), of a Parquet file in batches; other row groups are not read."""
        name = self.settings.text_column
        with self._read(), self._open_parquet() as file:
            first = 0
            for group in range(file.num_row_groups):
                stop = first + file.metadata.row_group(group).num_rows
                if np.searchsorted(rows, first) < np.searchsorted(rows, stop):
                    for batch in file.iter_batches(BATCH_ROWS, row_groups=[group], columns=[name]):
                        low, high = np.searchsorted(rows, [first, first + batch.num_rows])
                        if low < high:
                            wanted = batch.take(pa.array(rows[low:high] - first))
                            yield conform(wanted, name, self.settings.id_column, [])["text"]
                        first += batch.num_rows
                first = stop

    @contextmanager
    def _read(self) -> Iterator[None]:
        """Explain the errors of the block, which reads the file, and check in the end that it is still the same."""
        try:
            yield
            self._check_unchanged()
        except BadShardError:
            raise
        except (*BROKEN_FILE_ERRORS, OSError, ColumnTypeError) as error:
            if is_transient(error):
                raise
            self._check_unchanged()
            raise self._error(error) from error

    def _schema_and_rows(self) -> tuple[pa.Schema, int]:
        if self.shard.format == "jsonl":
            return jsonl_schema(self.shard)
        with self._open_parquet() as file:
            return file.schema_arrow, file.metadata.num_rows

    def _open_parquet(self) -> pq.ParquetFile:
        return pq.ParquetFile(self._path if is_local(self._filesystem) else RemoteFile(self.shard.url))

    def _parquet_batches(self) -> Iterator[tuple[pa.RecordBatch, None]]:
        with self._open_parquet() as file:
            wanted = {*FINEWEB.names, self.settings.text_column, self.settings.id_column}
            wanted |= {field.name for field in self.extra}
            columns = [name for name in file.schema_arrow.names if name in wanted]
            for batch in file.iter_batches(BATCH_ROWS, columns=columns):
                yield batch, None

    def _jsonl_batches(self) -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
        fields = [
            pa.field(self.settings.text_column, pa.string()),
            pa.field(self.settings.id_column, pa.string()),
            *(field for field in FINEWEB if field.name not in ("text", "id")),
            *self.extra,
        ]
        return jsonl_batches(self.shard, fields, BATCH_ROWS)
