"""Read JSON Lines as Arrow batches: infer the columns, and name what is wrong with a row."""

import codecs
import json
import re
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import IO, Any

import pyarrow as pa

from fineweb_mask.models.columns import BEYOND, as_number, number_text
from fineweb_mask.models.names import alike, find, inside
from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.tasks.source.discovery import ending_of
from fineweb_mask.tasks.source.unpacking import UnpackingError, open_unpacked

SKIPPED_BYTES = 2**20
"""Bytes of a line that is too long, or of a file that has no lines, read at a time."""

BETWEEN = re.compile(r"[\s,\[\]]*")
"""What stands between the objects of a list, or of a file that is not one object a line."""

MOST_NESTED = 2**21
"""Most objects and lists in a line: each takes up to 100 bytes of memory for two of the line."""

NO_FLOAT = 2**1024 - 2**970
"""The least whole number that a float of 64 bits, rounded to the nearest, does not hold."""

WHOLE, LARGE = "whole", "large"
"""Kinds of numbers beside `int` and `float`: a float without a fraction, and an integer of more than 64 bits."""

_JSON = json.JSONDecoder(parse_constant=lambda _: None)
"""Reads NaN, Infinity and -Infinity, which Python writes and JSON has not, as null."""

Row = tuple[list[Any], str | None]  # values in the order of the fields, and what is wrong with the row


def jsonl_schema(records: Iterable[dict[str, Any] | str], whole: Iterable[str] = ()) -> tuple[pa.Schema, int]:
    """Return the columns and the number of rows of a file, from one pass over it.

    A column with values of several types, or with nested ones, is a string column: its values become JSON text. Rows
    with a problem have no say in it. Numbers that are all whole are integers where one is written as such, or if the
    column is named in `whole`.
    """
    kinds = defaultdict[str, set[object]](set)
    rows, integers = 0, set(map(alike, whole))
    for rows, record in enumerate(records, start=1):  # noqa: B007
        if isinstance(record, dict):
            for name, value in record.items():
                kind: object = type(value)
                if kind is float and value.is_integer() and abs(value) < BEYOND:
                    kind = WHOLE
                elif kind is int and not -(2**63) <= value < 2**63:
                    kind = LARGE
                kinds[name].add(kind)
    types = {name: _column_type(found, alike(name) in integers) for name, found in kinds.items()}
    return pa.schema(types.items()), rows


def record_batches(
    records: Iterable[dict[str, Any] | str],
    fields: Sequence[pa.Field],
    batch_rows: int,
    batch_bytes: int,
    as_text: Container[str] = (),
    lost: Counter[str] | None = None,
) -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
    """Yield batches of at most `batch_rows` records, each with a string column of problems (null: none).

    A batch is full, too, when its texts have `batch_bytes`. The values of a row with a problem are null: that of its
    record (of JSON Lines, `broken_row` and `too_large`), `wrong_type` or `invalid_utf8`. Other values than texts become
    text in the string fields that are named in `as_text`. A value that is no number, or does not fit, is null where its
    field is one of numbers, and counted as `lost`.
    """
    pending: list[Row] = []
    lost = Counter() if lost is None else lost
    size = 0
    for record in records:
        row = _row(record, fields, as_text, lost)
        pending.append(row)
        size += sum(len(value) for value in row[0] if isinstance(value, str))
        if len(pending) == batch_rows or size >= batch_bytes:
            yield _batch(pending, fields)
            pending, size = [], 0
    yield _batch(pending, fields)


def jsonl_records(
    url: str, name: str, max_line_bytes: int, paths: Sequence[str] = ()
) -> Iterator[dict[str, Any] | str]:
    """Yield the object of each line that is not blank; instead of one that cannot be read, its problem.

    A file whose `name` ends in .json may also hold a list of objects, or objects of several lines. Values at `paths`
    within others become keys of their own.
    """
    for record in _records(url, name, max_line_bytes):
        yield record | _values_at(paths, record) if paths and isinstance(record, dict) else record


def _records(url: str, name: str, max_line_bytes: int) -> Iterator[dict[str, Any] | str]:
    may_be_a_list = ending_of(name).lower().split(".")[1:2] == ["json"]
    with open_unpacked(url, name) as lines:
        while line := lines.readline(max_line_bytes + 1):
            if may_be_a_list and (start := line.removeprefix(codecs.BOM_UTF8).strip()):
                if start.startswith(b"[") or start.endswith((b"{", b"[", b",")):
                    yield from _values(line, lines, max_line_bytes)
                    return
                may_be_a_list = False
            if len(line) <= max_line_bytes or line.endswith(b"\n"):
                if line.strip():
                    yield _parse(line)
                continue
            del line
            while (rest := lines.readline(SKIPPED_BYTES)) and not rest.endswith(b"\n"):
                raise_if_stopped()
            yield "too_large"


def _values(first: bytes, stream: IO[bytes], most: int) -> Iterator[dict[str, Any] | str]:
    """Yield the objects of a file from its first bytes on, and a problem instead of another value."""
    utf8 = codecs.getincrementaldecoder("utf-8-sig")("surrogateescape")
    text, start, depth = utf8.decode(first), 0, 0
    while True:
        between = BETWEEN.match(text, start)[0]  # type: ignore[index]
        start, depth = start + len(between), depth + between.count("[") - between.count("]")
        try:
            value, end = _JSON.raw_decode(text, start)
        except (ValueError, RecursionError) as error:
            raise_if_stopped()
            rest = len(text) - start
            more = b"" if rest > 2 * most else stream.read(max(SKIPPED_BYTES, rest))
            if not more and not rest and not depth:
                return
            if not more:
                raise UnpackingError(
                    "its JSON is broken or cut off, or an object in it is too large: write one object a line"
                ) from error
            text, start = text[start:] + utf8.decode(more), 0
            continue
        if end - start > most:
            yield "too_large"
        else:
            yield _checked(value)
        start = end


def _values_at(paths: Sequence[str], record: dict[str, Any]) -> dict[str, Any]:
    found = {path: inside(record, path, paths) for path in paths if find(path, record) is None}
    return {path: value for path, value in found.items() if value is not paths}


def _parse(line: bytes) -> dict[str, Any] | str:
    if len(line) > MOST_NESTED and line.count(b"{") + line.count(b"[") > MOST_NESTED:
        return "too_large"
    try:
        record = _JSON.decode(line.decode(json.detect_encoding(line), "surrogatepass"))
    except (ValueError, RecursionError):
        return "broken_row"
    return _checked(record)


def _checked(record: object) -> dict[str, Any] | str:
    """Return a JSON object as it is, and instead of another value its problem."""
    if not isinstance(record, dict):
        return "broken_row"
    return record if all(map(_is_encodable, record)) else "invalid_utf8"


def _column_type(found: set[object], is_whole: bool) -> pa.DataType:
    known = found - {type(None)}
    if known == {bool}:
        return pa.bool_()
    if known and known <= {int, WHOLE} and (is_whole or int in known):
        return pa.int64()
    if known & {float, WHOLE} and known <= {int, float, WHOLE, LARGE}:
        return pa.float64()
    return pa.string()


def _row(record: dict[str, Any] | str, fields: Sequence[pa.Field], as_text: Container[str], lost: Counter[str]) -> Row:
    if isinstance(record, str):
        return [None] * len(fields), record
    values: list[Any] = []
    for field in fields:
        value = record.get(field.name)
        if value is not None and not _fits(value, field.type):
            if not pa.types.is_string(field.type):
                value = as_number(value, whole=pa.types.is_integer(field.type))
                lost.update([] if value is not None else [field.name])
            elif field.name not in as_text:
                return [None] * len(fields), "wrong_type"
            else:
                value = number_text(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
        if isinstance(value, int) and pa.types.is_floating(field.type):
            value = float(value)  # the nearest; Arrow refuses a large one
        if isinstance(value, str) and not _is_encodable(value):
            return [None] * len(fields), "invalid_utf8"
        values.append(value)
    return values, None


def _fits(value: object, kind: pa.DataType) -> bool:
    if pa.types.is_string(kind):
        return isinstance(value, str)
    if pa.types.is_boolean(kind) or isinstance(value, bool):
        return pa.types.is_boolean(kind) and isinstance(value, bool)
    if pa.types.is_integer(kind):
        return isinstance(value, int) and -(2**63) <= value < 2**63
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < NO_FLOAT)


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
