"""Bring columns of any Arrow type to the types that documents are kept in, or to text."""

import base64
import json
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from fineweb_mask.models.names import find, splits

_TEXT = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_BYTES = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary)
_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
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
_EXACT: dict[pa.DataType, set[type]] = {
    pa.string(): {str},
    pa.bool_(): {bool},
    pa.int64(): {int},
    pa.float64(): {int, float},
}
"""Types of Python that Arrow turns into a type without any loss, or not at all."""
_LOST = object()
"""Stands for a value that Python cannot read."""
_TIME = r" (\d\d:\d\d:\d\d)(\.\d*[1-9])?[.0]*(Z?)$"
"""A time of day as Arrow writes it, with as many digits as its unit has."""
BEYOND = 2.0**63
"""The least whole number that is too large for 64 bits."""


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
    """Return the type of the values that an extension or a dictionary holds."""
    if isinstance(kind, pa.BaseExtensionType) and not isinstance(kind, pa.UuidType):
        return stored_type(kind.storage_type)
    return stored_type(kind.value_type) if pa.types.is_dictionary(kind) else kind


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
        inner = kept_type(values)
        is_simple = not is_nested(values) and (inner != pa.string() or _is(values, *_TEXT))
        return pa.null() if pa.types.is_null(inner) else pa.list_(inner) if is_simple else pa.string()
    if pa.types.is_null(kind):
        return kind
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    found = (simple for simple, checks in _SIMPLE.items() if _is(kind, *checks) and kind != pa.uint64())
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
    """Return the values that an extension or a dictionary holds; those of UUIDs are texts."""
    if isinstance(column.type, pa.UuidType):
        return pa.array((value and str(value) for value in column.to_pylist()), pa.string())
    if isinstance(column.type, pa.BaseExtensionType):
        return stored(column.storage)
    return stored(column.dictionary).take(column.indices) if pa.types.is_dictionary(column.type) else column


def read_as_text(column: pa.Array) -> pa.Array:
    """Return a column of text, or of bytes that are text, as strings, which are not checked."""
    return stored(column).cast(pa.binary()).cast(pa.string(), safe=False)


def kept(column: pa.Array, kind: pa.DataType) -> tuple[pa.Array, int]:
    """Return a column in a kept type, null where a value is none of it, and how many of them these are.

    Text is not checked. Other values become text where that is kept: bytes in base64, nested ones in JSON.

    >>> values, lost = kept(pa.array([5.0, 1.5, float("nan")]), pa.int64())
    >>> values.to_pylist(), lost  # what is not finite is a gap
    ([5, None, None], 1)
    """
    column = stored(column)
    if pa.types.is_floating(column.type):
        column = finite(column)
    if kind == pa.string() and _is(column.type, *_TEXT):
        return read_as_text(column), 0
    if kind == pa.string() and pa.types.is_timestamp(column.type):  # as FineWeb writes dates
        zone = pa.timestamp(column.type.unit, "UTC") if column.type.tz else column.type
        return pc.replace_substring_regex(column.cast(zone).cast(pa.string()), _TIME, r"T\1\2\3"), 0
    try:
        if kept_type(column.type) == kind and kind != pa.string():
            return column.cast(kind, safe=False), 0
        return kept_values(column.to_pylist(), kind)
    except (pa.ArrowException, ValueError, OverflowError):  # such as a time that Python has not, or what is no UTF-8
        return kept_values(list(map(_value, column)), kind)


def kept_values(values: Sequence[Any], kind: pa.DataType) -> tuple[pa.Array, int]:
    """Return values of Python, or of JSON, in a kept type, as `kept` does.

    >>> kept_values([1, "one", None, {"a": "é"}], pa.string())[0].to_pylist()
    ['1', 'one', None, '{"a": "é"}']
    """
    if set(map(type, values)) - {type(None)} <= _EXACT.get(kind, set()):
        with suppress(OverflowError, pa.ArrowException):
            return pa.array(values, kind), 0
    found = [_fitting(value, kind) for value in values]
    gaps = sum(value is None or (isinstance(value, float) and not math.isfinite(value)) for value in values)
    return pa.array(found, kind), found.count(None) - gaps


def _fitting(value: Any, kind: pa.DataType) -> Any:  # noqa: ANN401
    """Return a value as one of a kept type, None if it is none."""
    if value is None or value is _LOST:
        return None
    if pa.types.is_list(kind):
        found = [_fitting(one, kind.value_type) for one in value] if isinstance(value, list) else None
        return None if found is None or found.count(None) > value.count(None) else found
    if kind == pa.string():
        return _text(value)
    if kind in (pa.int64(), pa.float64()):
        return as_number(value, whole=kind == pa.int64())
    return value if kind == pa.bool_() and isinstance(value, bool) else None


def _text(value: Any) -> str | None:  # noqa: ANN401
    if isinstance(value, float):
        return number_text(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    is_json = isinstance(value, bool | list | tuple | dict)
    return json.dumps(value, ensure_ascii=False, default=_text) if is_json else str(value)


def _value(value: pa.Scalar) -> Any:  # noqa: ANN401
    try:
        return value.as_py()
    except (ValueError, OverflowError):
        return _LOST


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
