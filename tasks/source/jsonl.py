"""Read JSON Lines as Arrow batches: infer the columns, and name what is wrong with a row."""

import gzip
import io
import json
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from fineweb_mask.models.schemas import FINEWEB
from fineweb_mask.tasks.source.discovery import SourceShard
from fineweb_mask.tasks.storage.remote_file import open_source

Row = tuple[list[Any], str | None]  # values in the order of the fields, and what is wrong with the row


def jsonl_schema(shard: SourceShard) -> tuple[pa.Schema, int]:
    """Return the columns and the number of rows, from one pass over the file.

    A column with values of several types, or with nested ones, is a string column: its values become JSON text.
    """
    kinds: dict[str, set[type]] = {}
    rows = 0
    for rows, record in enumerate(_records(shard), start=1):  # noqa: B007
        for name, value in (record or {}).items():
            kinds.setdefault(name, set()).add(type(value))
    return pa.schema([pa.field(name, _column_type(found)) for name, found in kinds.items()]), rows


def jsonl_batches(
    shard: SourceShard, fields: Sequence[pa.Field], batch_rows: int
) -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
    """Yield batches of at most `batch_rows` rows, each with a string column of problems (null: none).

    The fields are the text, the id and the others of FineWeb, then the extra ones. The values of a row with a problem
    are null. Problems are `broken_row`, `wrong_type` and `invalid_utf8`.
    """
    pending: list[Row] = []
    for record in _records(shard):
        pending.append(_row(record, fields))
        if len(pending) == batch_rows:
            yield _batch(pending, fields)
            pending = []
    yield _batch(pending, fields)


def _records(shard: SourceShard) -> Iterator[dict[str, Any] | None]:
    """Yield the object of each line that is not blank; None for a line without one."""
    with open_source(shard.url) as stream, _decompressed(stream, shard.relative.lower()) as lines:
        for line in lines:
            if line.strip():
                yield _parse(line)


def _decompressed(stream: io.BufferedReader, name: str) -> io.BufferedReader | gzip.GzipFile:
    """Return the lines of all compressed frames; Arrow raises if the last frame of zstd is incomplete."""
    if name.endswith(".zst"):
        return io.BufferedReader(pa.CompressedInputStream(stream, "zstd"))
    return gzip.GzipFile(fileobj=stream) if name.endswith(".gz") else stream


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _column_type(found: set[type]) -> pa.DataType:
    known = found - {type(None)}
    if known == {bool}:
        return pa.bool_()
    if known == {int}:
        return pa.int64()
    if known and known <= {int, float}:
        return pa.float64()
    return pa.string()


def _row(record: dict[str, Any] | None, fields: Sequence[pa.Field]) -> Row:
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
        if isinstance(value, str) and not _is_encodable(value):
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


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate, which is valid in JSON and not in UTF-8
        return False
    return True


def _batch(rows: list[Row], fields: Sequence[pa.Field]) -> tuple[pa.RecordBatch, pa.Array]:
    columns = [pa.array([values[index] for values, _ in rows], field.type) for index, field in enumerate(fields)]
    problems = pa.array([problem for _, problem in rows], pa.string())
    return pa.record_batch(columns, schema=pa.schema(fields)), problems
