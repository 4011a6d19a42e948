"""Reading a source file, whatever its format, as batches of Arrow columns."""

import gzip
import io
import json
import zlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fineweb_mask.models.documents import conform
from fineweb_mask.models.schemas import FINEWEB, RESERVED_COLUMNS
from fineweb_mask.models.settings import SourceSettings
from fineweb_mask.tasks.source.discovery import SourceShard, fingerprint_of
from fineweb_mask.tasks.storage.errors import is_transient
from fineweb_mask.tasks.storage.filesystem import is_local, look_anew, open_filesystem
from fineweb_mask.tasks.storage.remote_file import RemoteFile, open_source
from fineweb_mask.tasks.storage.retries import attempt
from fineweb_mask.tasks.workspace.job import BadShardError

BATCH_ROWS = 1_000
TAKEN_NAMES = RESERVED_COLUMNS | {
    *FINEWEB.names,
    *(
        "shard",
        "documents_file",
        "scores_file",
        "_folder",
        "_random",
        "_shard",
        "_row",
    ),  # of the dataset's queries
}
BROKEN_FILE_ERRORS = (pa.ArrowException, EOFError, zlib.error, UnicodeError)


class ShardReader:
    """Streams one source file as batches with FineWeb's nine columns, then the extra ones.

    Parameters
    ----------
    shard
        The file.
    settings
        Which columns hold the text and the id, and which extra columns to carry along.

    Raises
    ------
    BadShardError
        Here or while reading: if the file is damaged, or a column is missing or of the wrong type.
    """

    def __init__(self, shard: SourceShard, settings: SourceSettings) -> None:
        self.shard = shard
        self.settings = settings
        self._filesystem, self._path = open_filesystem(shard.url)
        self._state = self._look()
        if settings.fingerprint == "mtime" and self._state != shard.fingerprint:
            raise self._bad("it was changed since the run began: run again")
        try:
            names, self.rows = self._look_inside()
        except (*BROKEN_FILE_ERRORS, OSError) as error:
            if is_transient(error):
                raise
            raise self._bad(error) from error
        if settings.text_column not in names.names:
            raise self._bad(f"no column {settings.text_column!r}, set source.text_column to one of {names.names}")
        self.extra = self._extra_fields(names)

    def _look(self) -> str:
        look_anew(self._filesystem, self._path)
        try:
            return fingerprint_of(attempt(self.shard.url, self._filesystem.info, self._path))
        except OSError as error:
            if is_transient(error):
                raise
            raise self._bad(error) from error

    def _check_unchanged(self) -> None:
        if self._look() != self._state:
            raise self._bad("it was changed while it was read: run again")

    def _bad(self, reason: object) -> BadShardError:
        return BadShardError(f"{self.shard.relative}: {reason}")

    def _extra_fields(self, schema: pa.Schema) -> list[pa.Field]:
        known = {*FINEWEB.names, self.settings.text_column, self.settings.id_column}
        if self.settings.extra_columns == "all":
            names = [name for name in schema.names if name not in known]
        else:
            names = [name for name in self.settings.extra_columns if name not in known]
        if taken := [name for name in names if name.lower() in TAKEN_NAMES]:  # SQL does not tell Text from text
            raise self._bad(
                f"column {taken[0]!r} has a name that the pipeline writes itself: "
                "list the columns to carry along, without it, in source.extra_columns"
            )
        if alike := [name for name, times in Counter(name.lower() for name in names).items() if times > 1]:
            raise self._bad(
                f"columns {[name for name in names if name.lower() == alike[0]]} differ in case only: "
                "list the columns to carry along, with one of them, in source.extra_columns"
            )
        if missing := set(names).difference(schema.names):
            raise self._bad(f"no column {sorted(missing)[0]!r}, source.extra_columns may name {schema.names}")
        if wide := [name for name in names if pa.types.is_decimal256(schema.field(name).type)]:
            raise self._bad(
                f"column {wide[0]!r} holds decimals of more than 38 digits, which DuckDB cannot carry: "
                "list the columns to carry along, without it, in source.extra_columns"
            )
        return [pa.field(name, schema.field(name).type) for name in names]

    def batches(self) -> Iterator[tuple[pa.RecordBatch, pa.Array | None]]:
        """Yield batches in file order, each with a column of problems (null: none) where rows could not be read."""
        rows = self._parquet_batches() if self.shard.format == "parquet" else self._json_batches()
        try:
            for batch, problems in rows:
                yield conform(batch, self.settings.text_column, self.settings.id_column, self.extra), problems
            self._check_unchanged()
        except BadShardError:
            raise
        except (*BROKEN_FILE_ERRORS, OSError, ValueError) as error:
            if is_transient(error):
                raise
            self._check_unchanged()
            raise self._bad(error) from error

    def _open_parquet(self) -> pq.ParquetFile:
        return pq.ParquetFile(self._path if is_local(self._filesystem) else RemoteFile(self.shard.url))

    def _parquet_batches(self) -> Iterator[tuple[pa.RecordBatch, None]]:
        with self._open_parquet() as file:
            wanted = {
                *FINEWEB.names,
                self.settings.text_column,
                self.settings.id_column,
                *(f.name for f in self.extra),
            }
            columns = [name for name in file.schema_arrow.names if name in wanted]
            for batch in file.iter_batches(BATCH_ROWS, columns=columns):
                yield batch, None

    def _json_records(self) -> Iterator[dict[str, Any] | None]:
        name = self.shard.relative.lower()
        with open_source(self.shard.url) as stream, _decompressed(stream, name) as lines:
            for line in lines:
                if line.strip():
                    yield _parse(line)

    def _look_inside(self) -> tuple[pa.Schema, int]:
        """Return the columns and the number of rows.

        Lines are read once for it; a column of several types, or a nested one, is kept as JSON text.
        """
        if self.shard.format == "parquet":
            with self._open_parquet() as file:
                return file.schema_arrow, file.metadata.num_rows
        kinds: dict[str, set[type]] = {}
        rows = 0
        for rows, record in enumerate(self._json_records(), start=1):  # noqa: B007
            for name, value in (record or {}).items():
                kinds.setdefault(name, set()).add(type(value))
        return pa.schema([pa.field(name, _json_type(found)) for name, found in kinds.items()]), rows

    def _json_batches(self) -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
        fields = [
            pa.field(self.settings.text_column, pa.string()),
            pa.field(self.settings.id_column, pa.string()),
            *(field for field in FINEWEB if field.name not in ("text", "id")),
            *self.extra,
        ]
        pending: list[tuple[list[Any], str | None]] = []
        for record in self._json_records():
            pending.append(_typed(record, fields))
            if len(pending) == BATCH_ROWS:
                yield _json_batch(pending, fields)
                pending = []
        yield _json_batch(pending, fields)


def _decompressed(stream: io.BufferedReader, name: str) -> io.BufferedReader | gzip.GzipFile:
    """Return the lines of all frames; Arrow notices a frame of zstd that is cut short."""
    if name.endswith(".zst"):
        return io.BufferedReader(pa.CompressedInputStream(stream, "zstd"))
    return gzip.GzipFile(fileobj=stream) if name.endswith(".gz") else stream


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _json_type(found: set[type]) -> pa.DataType:
    known = found - {type(None)}
    if known == {bool}:
        return pa.bool_()
    if known == {int}:
        return pa.int64()
    if known and known <= {int, float}:
        return pa.float64()
    return pa.string()


def _typed(record: dict[str, Any] | None, fields: list[pa.Field]) -> tuple[list[Any], str | None]:
    """Return a record's values in the order of `fields`, and what is wrong with it."""
    if record is None:
        return [None] * len(fields), "broken_row"
    values: list[Any] = []
    for position, field in enumerate(fields):
        value = record.get(field.name)
        if value is not None and not _fits(value, field.type):
            is_extra = position >= len(FINEWEB)
            is_number_id = position == FINEWEB.get_field_index("id") and isinstance(value, int)
            if is_number_id or (is_extra and pa.types.is_string(field.type)):
                value = json.dumps(value, ensure_ascii=False)
            else:
                return [None] * len(fields), "wrong_type"
        if isinstance(value, str) and not _encodes(value):
            return [None] * len(fields), "invalid_utf8"
        values.append(value)
    return values, None


def _fits(value: object, kind: pa.DataType) -> bool:
    if pa.types.is_string(kind):
        return isinstance(value, str)
    if pa.types.is_boolean(kind):
        return isinstance(value, bool)
    if pa.types.is_integer(kind):
        return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
    return isinstance(value, int | float) and not isinstance(value, bool)


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate, which JSON can spell and UTF-8 cannot
        return False
    return True


def _json_batch(rows: list[tuple[list[Any], str | None]], fields: list[pa.Field]) -> tuple[pa.RecordBatch, pa.Array]:
    columns = [pa.array([values[index] for values, _ in rows], field.type) for index, field in enumerate(fields)]
    problems = pa.array([problem for _, problem in rows], pa.string())
    return pa.record_batch(columns, schema=pa.schema(fields)), problems
