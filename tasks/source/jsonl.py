"""Read the objects of JSON Lines, and infer their columns."""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import pyarrow as pa

from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.tasks.source.discovery import ending_of
from fineweb_mask.tasks.source.opening import BrokenFileError, open_unpacked

SKIPPED_BYTES = 2**20
"""Bytes of a line that is too long, read at a time."""

_JSON = json.JSONDecoder(parse_constant=lambda _: None)
"""Reads NaN, Infinity and -Infinity, which Python writes and JSON has not, as null."""

Record = dict[str, Any] | str  # an object, or the problem for which it could not be read


def jsonl_records(url: str, name: str, max_line_bytes: int) -> Iterator[Record]:
    """Yield the object of each line that is not blank; instead of one that cannot be read, its problem.

    Problems are `broken_row`, `too_large` and `invalid_utf8`. A file whose `name` ends in .json may also be one value
    of several lines, a list of objects or one object, which is read into memory.
    """
    may_be_one = ending_of(name).lower().split(".")[1:2] == ["json"]
    with open_unpacked(url) as lines:
        while line := lines.readline(max_line_bytes + 1):
            if len(line) > max_line_bytes and not line.endswith(b"\n") and not may_be_one:
                while (rest := lines.readline(SKIPPED_BYTES)) and not rest.endswith(b"\n"):
                    raise_if_stopped()
                yield "too_large"
            elif line.strip():
                record = _parse(line)
                if may_be_one and not isinstance(record, dict):
                    yield from _values(line + lines.read())
                    return
                may_be_one = False
                yield record


def _values(content: bytes) -> list[Record]:
    """Return the objects of a list, or the only one."""
    try:
        found = _JSON.decode(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise BrokenFileError("its JSON is broken or cut off: write one object a line") from error
    return [_checked(one) for one in (found if isinstance(found, list) else [found])]


def _parse(line: bytes) -> Record:
    try:
        return _checked(_JSON.decode(line.decode("utf-8-sig")), may_be_invalid=b"\\u" in line)
    except (ValueError, RecursionError):
        return "broken_row"


def _checked(record: object, *, may_be_invalid: bool = True) -> Record:
    """Return a JSON object as it is, and instead of another value, or one with half a character, its problem."""
    if not isinstance(record, dict):
        return "broken_row"
    try:
        if may_be_invalid:
            json.dumps(record, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # a lone surrogate, which is valid in JSON and not in UTF-8
        return "invalid_utf8"
    return record


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
        return pa.struct([(key, inferred_type(some)) for key, some in inner.items()])
    if kinds == {list}:
        return pa.list_(inferred_type(chain.from_iterable(found)))
    if kinds == {int, float} and all(value.is_integer() for value in found if isinstance(value, float)):
        kinds = {int}
    if kinds == {int}:
        return pa.int64() if all(-(2**63) <= value < 2**63 for value in found) else pa.string()
    if kinds and kinds <= {int, float}:
        return pa.float64()
    return pa.bool_() if kinds == {bool} else pa.string() if kinds else pa.null()
