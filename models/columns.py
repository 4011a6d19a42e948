"""Bring columns of any Arrow type to the types that documents are kept in, or to text."""

import base64
import json
import math
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from fineweb_mask.models.errors import DataError
from fineweb_mask.models.names import find, splits

_TEXT = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_BYTES = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary)
_LISTS = (
    *(pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list),
    *(pa.types.is_list_view, pa.types.is_large_list_view),
)
_SIMPLE = {
    pa.bool_(): (pa.types.is_boolean,),
    pa.int64(): (pa.types.is_integer,),
    pa.float64(): (pa.types.is_floating,),
    pa.date32(): (pa.types.is_date,),
    pa.time64("us"): (pa.types.is_time,),
    pa.string(): _TEXT,
}
_TIMES = [pa.timestamp("us"), pa.timestamp("us", "UTC")]
KEPT_TYPES = {str(kind): kind for one in (*_SIMPLE, *_TIMES) for kind in (one, pa.list_(one))}
"""The types in which documents keep the source's columns, by their names."""
_NOT_UTF8 = b"\xff"
_TIME = r" (\d\d:\d\d:\d\d)(\.\d*[1-9])?[.0]*(Z?)$"
"""A time of day as Arrow writes it, with as many digits as its unit has."""
BEYOND = 2.0**63
"""The least whole number that is too large for 64 bits."""


class ColumnTypeError(DataError):
    """A column cannot be read as the type that it must have."""


def _is(kind: pa.DataType, *checks: Callable[[pa.DataType], bool]) -> bool:
    return any(check(kind) for check in checks)


def is_text(kind: pa.DataType) -> bool:
    """Return whether a column holds text, or bytes that may be text, or only nulls."""
    return _is(stored_type(kind), pa.types.is_null, *_TEXT, *_BYTES[:3])


def is_nested(kind: pa.DataType) -> bool:
    """Return whether the values of a type are lists, maps or structs."""
    return bool(pa.types.is_nested(kind))


def holds_strings(kind: pa.DataType) -> bool:
    """Return whether the values of a kept type are strings or lists of strings."""
    return _is(kind.value_type if pa.types.is_list(kind) else kind, *_TEXT)


def stored_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of the values that an extension, a dictionary or a run-end encoded type holds."""
    if isinstance(kind, pa.BaseExtensionType) and not isinstance(kind, pa.UuidType):
        return stored_type(kind.storage_type)
    is_encoded = pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind)
    return stored_type(kind.value_type) if is_encoded else kind


def kept_type(kind: pa.DataType) -> pa.DataType:
    """Return the type in which documents keep values of a type, null for a column of gaps, of which it says nothing.

    It is text, int64, float64, bool, a date or time (to the microsecond), or a list of one of these; of all others, the
    values are kept as their text, which is JSON of nested ones.

    Examples
    --------
    >>> kept_type(pa.large_list(pa.dictionary(pa.int8(), pa.string_view())))
    ListType(list<item: string>)
    >>> kept_type(pa.struct({"a": pa.int8()})), kept_type(pa.uint64())  # of which int64 holds half
    (DataType(string), DataType(string))
    """
    kind = stored_type(kind)
    if _is(kind, *_LISTS):
        values = stored_type(kind.value_type)
        kept = kept_type(values)
        is_simple = not is_nested(values) and (kept != pa.string() or _is(values, *_TEXT))
        return pa.null() if pa.types.is_null(kept) else pa.list_(kept) if is_simple else pa.string()
    if pa.types.is_null(kind):
        return kind
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    found = (kept for kept, checks in _SIMPLE.items() if _is(kind, *checks) and kind != pa.uint64())
    return next(found, pa.string())


def common_type(kinds: Iterable[pa.DataType]) -> pa.DataType:
    """Return the type that documents keep a column in that files have in these kept types: text if they do not agree.

    Whole numbers and fractions together are fractions, of which large ones are rounded.

    >>> common_type([pa.int64(), pa.float64(), pa.null()]), common_type([pa.int64(), pa.string()]), common_type([])
    (DataType(double), DataType(string), DataType(string))
    """
    found = {kind for kind in kinds if not pa.types.is_null(kind)}
    if found == {pa.int64(), pa.float64()}:
        return pa.float64()
    return found.pop() if len(found) == 1 else pa.string()


def stored(column: pa.Array) -> pa.Array:
    """Return the values that an extension, a dictionary or a run-end encoded column holds; those of UUIDs are texts."""
    if isinstance(column.type, pa.UuidType):
        return pa.array((value and str(value) for value in column.to_pylist()), pa.string())
    if isinstance(column.type, pa.BaseExtensionType):
        return stored(column.storage)
    if pa.types.is_list_view(column.type) or pa.types.is_large_list_view(column.type):  # Arrow casts to few offsets
        return pa.array(column.to_pylist(), pa.list_(column.type.value_type))
    if pa.types.is_dictionary(column.type):
        return stored(column.dictionary).take(column.indices)
    return stored(pc.run_end_decode(column)) if pa.types.is_run_end_encoded(column.type) else column


def read_as_text(column: pa.Array) -> pa.Array:
    """Return a column of text, or of bytes that are text, as strings, which are not checked."""
    return stored(column).cast(pa.binary()).cast(pa.string(), safe=False)


def to_text(column: pa.Array) -> pa.Array:
    """Return a text for each value: text as it is, unchecked, bytes in base64, and the JSON text of a nested value."""
    column = stored(column)
    if _is(column.type, pa.types.is_null, *_TEXT):
        return read_as_text(column)
    if _is(column.type, *_BYTES):
        return pa.array([value and base64.b64encode(value) for value in column.to_pylist()], pa.string())
    if pa.types.is_floating(column.type):
        return pa.array(map(number_text, column.to_pylist()), pa.string())
    if pa.types.is_timestamp(column.type):  # as FineWeb writes dates
        kind = pa.timestamp(column.type.unit, "UTC") if column.type.tz else column.type
        return pc.replace_substring_regex(column.cast(kind).cast(pa.string()), _TIME, r"T\1\2\3")
    if is_nested(column.type) or pa.types.is_interval(column.type):
        return read_as_text(pa.array([_json(value) for value in column], pa.binary()))
    return column.cast(pa.string())


def number_text(value: float | None) -> str | None:
    """Return the text of a number, of a whole one without a fraction; None for a gap, infinity included."""
    if value is None or not math.isfinite(value):
        return None
    return str(int(value)) if value == int(value) and abs(value) < BEYOND else json.dumps(value)


def label(value: object) -> str:
    """Return the text of a value that names a group, the same of a whole number and of a fraction; "" for none."""
    return (number_text(value) or "") if isinstance(value, float) else "" if value is None else str(value)


def as_number(value: object, *, whole: bool) -> int | float | None:
    """Return a value as a number of 64 bits, None if it is none, or no `whole` one where that is wanted.

    >>> [as_number(value, whole=True) for value in (123.0, "123", "1e3", 1.5, "many", True, 2**63)]
    [123, 123, 1000, None, None, None, None]
    """
    if isinstance(value, bool | list | dict):
        return None
    try:
        number = Decimal(value)  # type: ignore[arg-type]
        if whole:
            return int(number) if abs(number) < BEYOND and number == int(number) else None
        return float(number) if math.isfinite(float(number)) else None
    except (ArithmeticError, TypeError, ValueError):
        return None


def finite(column: pa.Array) -> pa.Array:
    """Return a column of fractions, with null for what is none, as pandas and NumPy write gaps."""
    is_finite = pc.is_finite(column)
    if pc.all(is_finite).as_py() in (None, True):
        return column
    return pc.if_else(is_finite, column, pa.scalar(None, column.type))


def to_numbers(column: pa.Array, kind: pa.DataType) -> tuple[pa.Array, int]:
    """Return a column of numbers, or of their texts, in a type, and how many do not fit and are null now.

    >>> values, lost = to_numbers(pa.array([5.0, 1.5, float("nan")]), pa.int64())
    >>> values.to_pylist(), lost  # what is not finite is a gap
    ([5, None, None], 1)
    """
    column = stored(column)
    if is_nested(column.type) or pa.types.is_temporal(column.type):
        raise ColumnTypeError(f"of type {column.type} cannot be read as {kind}: it must hold numbers")
    is_floating = pa.types.is_floating(column.type)
    column = finite(column).cast(pa.float64()) if is_floating else column
    gaps = column.null_count
    if is_floating and pa.types.is_integer(kind):
        fits = pc.and_(pc.equal(column, pc.floor(column)), pc.less(pc.abs(column), BEYOND))
        column = pc.if_else(fits, column, pa.scalar(None, column.type))
    elif not is_floating and not pa.types.is_signed_integer(column.type):
        column = pa.array([as_number(value, whole=pa.types.is_integer(kind)) for value in column.to_pylist()], kind)
    return column.cast(kind), column.null_count - gaps


def _json(value: pa.Scalar) -> bytes | None:
    try:
        found = value.as_py()
    except UnicodeDecodeError:
        return _NOT_UTF8  # for the filter to find
    return None if found is None else json.dumps(found, ensure_ascii=False, default=_json_of_other).encode()


def _json_of_other(value: Any) -> str:  # noqa: ANN401
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def locate(path: str, fields: Iterable[pa.Field]) -> tuple[tuple[str, ...], pa.DataType | None]:
    """Return the names that lead to a column, which may be within structs, and its type; None if there is none.

    >>> locate("META.source", pa.schema({"Meta": pa.struct({"source": pa.string()})}))
    (('Meta', 'source'), DataType(string))
    """
    kinds = {field.name: field.type for field in fields}
    if (own := find(path, kinds)) is not None:
        return (own,), kinds[own]
    for first, rest in splits(path):
        outer = find(first, kinds)
        if outer is not None and pa.types.is_struct(kinds[outer]):
            inner, kind = locate(rest, kinds[outer])
            if kind is not None:
                return (outer, *inner), kind
    return (path,), None


def value_at(table: pa.RecordBatch | pa.Table, place: Sequence[str]) -> pa.Array | pa.ChunkedArray:
    """Return the column that names lead to; what is within null is null."""
    column, inner = table[place[0]], list(place[1:])
    return pc.struct_field(column, inner) if inner else column
