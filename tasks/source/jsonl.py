"""Read the objects of JSON Lines, infer their columns, and turn them into Arrow batches with a problem for each row."""

import codecs
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import IO, Any

import numpy as np
import pyarrow as pa

from fineweb_mask.models.columns import as_number, number_text
from fineweb_mask.models.names import alike, inside
from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.models.schemas import FINEWEB
from fineweb_mask.tasks.source.discovery import ending_of
from fineweb_mask.tasks.source.opening import BrokenFileError, open_unpacked

SKIPPED_BYTES = 2**20
"""Bytes of a line that is too long, or of a file that has no lines, read at a time."""

BETWEEN = re.compile(r"[\s,\[\]]*")
"""What stands between the objects of a list, or of a file that is not one object a line."""

_JSON = json.JSONDecoder(parse_constant=lambda _: None)
"""Reads NaN, Infinity and -Infinity, which Python writes and JSON has not, as null."""

EXACT: dict[pa.DataType, set[type]] = {
    pa.string(): {str},
    pa.bool_(): {bool},
    pa.int64(): {int},
    pa.float64(): {int, float},
}
"""Types of Python that Arrow turns into a type without any loss, or not at all."""

Record = dict[str, Any] | str  # an object, or the problem for which it could not be read


def jsonl_records(url: str, name: str, max_line_bytes: int) -> Iterator[Record]:
    """Yield the object of each line that is not blank; instead of one that cannot be read, its problem.

    Problems are `broken_row`, `too_large` and `invalid_utf8`. A file whose `name` ends in .json may also hold a list of
    objects, or objects of several lines.
    """
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


def _values(first: bytes, stream: IO[bytes], most: int) -> Iterator[Record]:
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
                raise BrokenFileError(
                    "its JSON is broken or cut off, or an object in it is too large: write one object a line"
                ) from error
            text, start = text[start:] + utf8.decode(more), 0
            continue
        yield "too_large" if end - start > most else _checked(value)
        start = end


def _parse(line: bytes) -> Record:
    try:
        record = _JSON.decode(line.decode(json.detect_encoding(line), "surrogatepass"))
    except (ValueError, RecursionError):
        return "broken_row"
    return _checked(record)


def _checked(record: object) -> Record:
    """Return a JSON object as it is, and instead of another value its problem."""
    if not isinstance(record, dict):
        return "broken_row"
    return record if all(map(_is_encodable, record)) else "invalid_utf8"


def inferred_type(values: Iterable[Any]) -> pa.DataType:
    """Return the Arrow type of values of JSON: text if they are of several, null if there are only gaps.

    Numbers that are all whole are integers if one is written as such.

    >>> inferred_type([1, None, 0.5]), inferred_type([{"a": ["x"]}, {"b": True}])
    (DataType(double), StructType(struct<a: list<item: string>, b: bool>))
    """
    found = [value for value in values if value is not None]
    kinds = set(map(type, found))
    if kinds == {dict}:
        inner = defaultdict[str, list[Any]](list)
        for key, value in chain.from_iterable(map(dict.items, found)):
            inner[key].append(value)
        return pa.struct([(key, inferred_type(some)) for key, some in inner.items() if _is_encodable(key)])
    if kinds == {list}:
        return pa.list_(inferred_type(chain.from_iterable(found)))
    if kinds == {int, float} and all(value.is_integer() for value in found if isinstance(value, float)):
        kinds = {int}
    if kinds == {int}:
        return pa.int64() if all(-(2**63) <= value < 2**63 for value in found) else pa.string()
    if kinds and kinds <= {int, float}:
        return pa.float64()
    return pa.bool_() if kinds == {bool} else pa.string() if kinds else pa.null()


def record_batches(
    records: Iterable[Record],
    fields: Sequence[pa.Field],
    own_names: Mapping[str, str],
    lost: Counter[str],
    batch_rows: int,
    batch_bytes: int,
) -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
    """Yield batches of at most `batch_rows` records, each with a string column of problems (null: none).

    A batch is full, too, when its texts have `batch_bytes`. The values of a row with a problem are null: that of its
    record, `wrong_type` or `invalid_utf8`. Other values than texts become text in string fields, but in FINEWEB's only
    ids and dates. A value that does not fit its field is null, and counted as `lost`.

    Parameters
    ----------
    records
        As `jsonl_records` yields them.
    fields
        The columns of the batches.
    own_names
        Names of fields in the records, or paths to them; records may spell them otherwise.
    lost
        Is added to, by the names of fields.
    batch_rows, batch_bytes
        The most of a batch.
    """
    pending: list[Record] = []
    size = 0
    for record in records:
        pending.append(record)
        if isinstance(record, dict):
            size += sum(len(value) for value in record.values() if isinstance(value, str))
        if len(pending) == batch_rows or size >= batch_bytes:
            yield _batch(pending, fields, own_names, lost)
            pending, size = [], 0
    yield _batch(pending, fields, own_names, lost)


def _batch(
    records: Sequence[Record], fields: Sequence[pa.Field], own_names: Mapping[str, str], lost: Counter[str]
) -> tuple[pa.RecordBatch, pa.Array]:
    problems = [record if isinstance(record, str) else None for record in records]
    rows = [record if isinstance(record, dict) else {} for record in records]
    keys = {key for row in rows for key in row}
    columns = []
    for field in fields:
        own = own_names[field.name]
        is_plain = "." not in own and all(key == own or alike(key) != alike(own) for key in keys)
        values = [row.get(own) if is_plain else inside(row, own) for row in rows]
        columns.append(_column(values, field, problems, lost))
    batch = pa.record_batch(columns, schema=pa.schema(fields))
    bad = np.array([problem is not None for problem in problems])
    if bad.any():
        batch = batch.take(pa.array(np.arange(len(bad)), mask=bad))
    return batch, pa.array(problems, pa.string())


def _column(values: list[Any], field: pa.Field, problems: list[str | None], lost: Counter[str]) -> pa.Array:
    """Return values of JSON in a field's type, and add to the problems of their rows and to what is lost."""
    if set(map(type, values)) - {type(None)} <= EXACT.get(field.type, set()):
        with suppress(pa.ArrowException, UnicodeError, OverflowError):
            return pa.array(values, field.type)
    is_strict = pa.types.is_string(field.type) and field.name in FINEWEB.names and field.name not in {"id", "date"}
    for at, value in enumerate(values):
        if value is None:
            continue
        values[at] = _fitting(value, field.type)
        if is_strict and not isinstance(value, str):
            problems[at], values[at] = problems[at] or "wrong_type", None
        elif not all(map(_is_encodable, values[at] if isinstance(values[at], list) else values[at : at + 1])):
            problems[at], values[at] = problems[at] or "invalid_utf8", None
        elif values[at] is None:
            lost[field.name] += 1
    return pa.array(values, field.type)


def _fitting(value: Any, kind: pa.DataType) -> Any:  # noqa: ANN401
    """Return a value as one of a kept type, None if it is none."""
    if pa.types.is_list(kind):
        if not isinstance(value, list):
            return None
        found = [None if one is None else _fitting(one, kind.value_type) for one in value]
        return found if found.count(None) == value.count(None) else None
    if pa.types.is_string(kind):
        if not isinstance(value, str):
            value = number_text(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
        return value
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return as_number(value, whole=pa.types.is_integer(kind))
    return value if pa.types.is_boolean(kind) and isinstance(value, bool) else None


def _is_encodable(value: object) -> bool:
    try:
        if isinstance(value, str):
            value.encode()
    except UnicodeEncodeError:  # a lone surrogate, which is valid in JSON and not in UTF-8
        return False
    return True
