"""Bring columns of any Arrow type to the types that documents are kept in, or to text."""

import base64
import json
import math
import uuid
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from fineweb_mask.models.errors import DataError
from fineweb_mask.models.names import find, splits

_TEXT = (pa.types.is_string, pa.types.is_large_string)
_BYTES = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_list_view, pa.types.is_large_list_view)
_OF_JSON = (pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, *_TEXT)
_NOT_UTF8 = b"\xff"
_TIME = r" (\d\d:\d\d:\d\d)(\.\d*[1-9])?[.0]*(Z?)$"
"""A time of day as Arrow writes it, with as many digits as its unit has."""
BEYOND = 2.0**63
"""The least whole number that is too large for 64 bits."""

LEAVE_OUT = "leave it out of source.extra_columns"


class ColumnTypeError(DataError):
    """A column cannot be read as the type that it must have."""


def is_text(kind: pa.DataType) -> bool:
    """Return whether a column of a plain type holds text, or bytes that may be text, or only nulls."""
    return _is(kind, pa.types.is_null, *_TEXT, pa.types.is_binary, pa.types.is_large_binary)


def _is(kind: pa.DataType, *checks: Callable[[pa.DataType], bool]) -> bool:
    return any(check(kind) for check in checks)


def is_nested(kind: pa.DataType) -> bool:
    """Return whether the values of a plain type are lists, maps or structs."""
    return bool(pa.types.is_nested(kind))


def holds_strings(kind: pa.DataType) -> bool:
    """Return whether the values of a plain type are strings, or have strings in them."""
    parts = [kind.field(index).type for index in range(kind.num_fields)]
    return _is(kind, *_TEXT) or any(holds_strings(part) for part in parts)


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type in which documents keep values of a type: one that Parquet, DuckDB and Arrow read alike.

    Most types are plain. A UUID becomes its text, an extension and a dictionary what they hold, a view what it views;
    so do the parts of nested types.

    Raises
    ------
    ColumnTypeError
        If there is none.

    Examples
    --------
    >>> plain_type(pa.large_list(pa.dictionary(pa.int8(), pa.string_view())))
    LargeListType(large_list<item: string>)
    """
    if isinstance(kind, pa.BaseExtensionType):
        return pa.string() if isinstance(kind, pa.UuidType) else plain_type(kind.storage_type)
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    if pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_binary_view(kind):
        return pa.binary()
    return _plain_nested_type(kind) if pa.types.is_nested(kind) else _plain_number_type(kind)


def _plain_nested_type(kind: pa.DataType) -> pa.DataType:
    if _is(kind, *_LISTS):
        values = plain_type(kind.value_type)
        return pa.large_list(values) if pa.types.is_large_list(kind) else pa.list_(values)
    if not _is(kind, pa.types.is_fixed_size_list, pa.types.is_map, pa.types.is_struct):
        raise ColumnTypeError(f"is of type {kind}, which DuckDB does not support: {LEAVE_OUT}")
    names = [field.name.lower() for field in kind] if pa.types.is_struct(kind) else []
    if "" in names or len(set(names)) < len(names):
        raise ColumnTypeError(f"has fields without a name, or with names that differ in case only: {LEAVE_OUT}")
    return _of_parts(kind, plain_type)


def _small(kind: pa.DataType) -> pa.DataType:
    """Return a plain type without 64-bit offsets, which writers choose as they like."""
    if _is(kind, pa.types.is_list, pa.types.is_large_list):
        return pa.list_(_small(kind.value_type))
    if pa.types.is_nested(kind):
        return _of_parts(kind, _small)
    return {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}.get(kind, kind)


def _of_parts(kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Return a type of fixed-size lists, maps or structs with changed types of its parts."""
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(change(kind.value_type), kind.list_size)
    if pa.types.is_map(kind):
        return pa.map_(change(kind.key_type), change(kind.item_type))
    return pa.struct([pa.field(field.name, change(field.type)) for field in kind])


def _plain_number_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_decimal256(kind):
        raise ColumnTypeError(f"holds decimals of more than 38 digits, which DuckDB does not support: {LEAVE_OUT}")
    if pa.types.is_interval(kind):
        raise ColumnTypeError(f"is of type {kind}, which DuckDB does not support: {LEAVE_OUT}")
    return pa.decimal128(kind.precision, kind.scale) if pa.types.is_decimal(kind) else kind


def to_plain(column: pa.Array) -> pa.Array:
    """Return a column in its plain type; strings are not checked, so they may be invalid UTF-8."""
    kind, plain = column.type, plain_type(column.type)
    if plain == kind:
        return column
    if isinstance(kind, pa.UuidType):
        values = (value and str(uuid.UUID(bytes=value)) for value in column.storage.to_pylist())
        return pa.array(values, pa.string())
    inner = _inner(column)
    if inner is not None:
        return to_plain(inner)
    if "list_view" in str(kind):  # Arrow's cast writes too few offsets
        return pa.array(column.to_pylist(), plain)
    bytes_first = pa.types.is_string_view(kind)  # a cast between strings checks them
    return column.cast(pa.binary()).cast(plain, safe=False) if bytes_first else column.cast(plain, safe=False)


def _inner(column: pa.Array) -> pa.Array | None:
    """Return what an extension, a dictionary or a run-end encoded column holds, or None for any other."""
    if isinstance(column.type, pa.BaseExtensionType):
        return column.storage
    if pa.types.is_dictionary(column.type):
        return to_plain(column.dictionary).take(column.indices)
    return pc.run_end_decode(column) if pa.types.is_run_end_encoded(column.type) else None


def read_as_text(column: pa.Array) -> pa.Array:
    """Return a column of text, or of bytes that are text, as strings, which are not checked."""
    return to_plain(column).cast(pa.binary()).cast(pa.string(), safe=False)


def to_text(column: pa.Array) -> pa.Array:
    """Return a text for each value: text as it is, unchecked, bytes in base64, and the JSON text of a nested value."""
    column = to_plain(column)
    if _is(column.type, pa.types.is_null, *_TEXT):
        return read_as_text(column)
    if _is(column.type, *_BYTES):
        return pa.array([value and base64.b64encode(value) for value in column.to_pylist()], pa.string())
    if pa.types.is_floating(column.type):
        return pa.array(map(number_text, column.to_pylist()), pa.string())
    if pa.types.is_timestamp(column.type):  # as FineWeb writes dates
        kind = pa.timestamp(column.type.unit, "UTC") if column.type.tz else column.type
        return pc.replace_substring_regex(column.cast(kind).cast(pa.string()), _TIME, r"T\1\2\3")
    if not is_nested(column.type):
        return column.cast(pa.string())
    return read_as_text(pa.array([_json(value) for value in column], pa.binary()))


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
    """Return a column of numbers, or of their texts, in a plain type, and how many do not fit and are null now.

    >>> values, lost = to_numbers(pa.array([5.0, 1.5, float("nan")]), pa.int64())
    >>> values.to_pylist(), lost  # what is not finite is a gap
    ([5, None, None], 1)
    """
    column = to_plain(column)
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


def must_be_text(kinds: Iterable[pa.DataType], *, beside_json: bool = False) -> bool:
    """Return whether a column that has these plain types in different files can only be kept as text.

    Numbers that differ are widened when the dataset is written, and become text beside text; neither can fail. All
    other types that differ can, unless one holds the values of the other. `beside_json` is for a column that files of
    JSON may have, too: there it is text, a number or a truth value.

    Examples
    --------
    >>> must_be_text([pa.int32(), pa.int64(), pa.null()])
    False
    >>> must_be_text([pa.list_(pa.int32()), pa.string()])
    True
    """
    found = {_small(kind) for kind in kinds if not pa.types.is_null(kind)}
    if beside_json and not all(_is(kind, *_OF_JSON) for kind in found):
        return True
    if len(found) < 2:
        return False
    if pa.string() in found:
        return len(found) > 2 or not all(_is(kind, *_OF_JSON) for kind in found)
    if any(is_nested(kind) for kind in found) or wider_type(found) in (None, pa.string()):
        return True
    units = {kind.unit for kind in found if pa.types.is_timestamp(kind)}
    return "ns" in units and len(units) > 1


def wider_type(kinds: Iterable[pa.DataType]) -> pa.DataType | None:
    """Return the type that holds the values of all plain types; text if they have nothing in common, None if none can.

    Whole numbers and fractions together are fractions, of which large ones are rounded.

    Examples
    --------
    >>> wider_type([pa.int64(), pa.uint64()])
    Decimal128Type(decimal128(20, 0))
    """
    found = set(kinds)
    if len(found) > 1:
        found = {_small(kind) for kind in found}
    is_beyond_64_bits = pa.uint64() in found and any(pa.types.is_signed_integer(kind) for kind in found)
    if is_beyond_64_bits or any(pa.types.is_decimal(kind) for kind in found):
        found = {pa.decimal128(20, 0) if pa.types.is_integer(kind) else kind for kind in found}
        found = {pa.float32() if pa.types.is_float16(kind) else kind for kind in found}
    schemas = [pa.schema([pa.field("column", kind)]) for kind in sorted(found, key=str)]
    try:
        wider = pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    except (pa.ArrowTypeError, pa.ArrowInvalid):
        return pa.string()
    return None if pa.types.is_decimal256(wider) else wider
