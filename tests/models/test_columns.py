"""Columns of all Arrow types become plain ones, which DuckDB and Parquet give back as they are, or text."""

import uuid
from datetime import datetime, time, timedelta
from decimal import Decimal

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.models.columns import (
    ColumnTypeError,
    as_number,
    label,
    locate,
    must_be_text,
    plain_type,
    to_numbers,
    to_plain,
    to_text,
    value_at,
    wider_type,
)

ID = uuid.UUID(int=5)
VALUES = [
    (pa.string(), ["é", None], ["é", None]),
    (pa.string_view(), ["a", None], ["a", None]),
    (pa.binary_view(), [b"\xff"], [b"\xff"]),
    (pa.binary(3), [b"abc"], [b"abc"]),
    (pa.uuid(), [ID.bytes, None], [str(ID), None]),
    (pa.json_(), ['{"a": 1}'], ['{"a": 1}']),
    (pa.dictionary(pa.int8(), pa.large_string()), ["a", None, "a"], ["a", None, "a"]),
    (pa.list_(pa.string_view()), [["a", None], None], [["a", None], None]),
    (pa.list_view(pa.int8()), [[1], []], [[1], []]),
    (pa.list_(pa.float32(), 2), [[1, 2]], [[1, 2]]),
    (pa.map_(pa.string(), pa.int8()), [[("a", 1)]], [[("a", 1)]]),
    (pa.struct([pa.field("a", pa.large_string(), nullable=False)]), [{"a": "x"}], [{"a": "x"}]),
    (pa.decimal32(5, 2), [Decimal("1.50")], [Decimal("1.50")]),
    (pa.bool_(), [True, None], [True, None]),
    (pa.uint64(), [2**64 - 1], [2**64 - 1]),
    (pa.float16(), [1.5], [1.5]),
    (pa.time32("ms"), [time(1)], [time(1)]),
    (pa.duration("us"), [timedelta(1)], [timedelta(1)]),
    (pa.timestamp("us"), [datetime(2024, 1, 2)], [datetime(2024, 1, 2)]),  # noqa: DTZ001
    (pa.null(), [None], [None]),
]


@pytest.mark.parametrize(("kind", "values", "expected"), VALUES, ids=lambda value: str(value)[:40])
def test_plain_columns_pass_through_parquet_and_duckdb(tmp_path, kind, values, expected):
    column = to_plain(pa.array(values, kind))
    assert column.type == plain_type(kind)
    assert column.to_pylist() == expected
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"column": column}), path)
    with duckdb.connect() as connection:
        found = connection.sql(f"SELECT * FROM '{path}'").to_arrow_table()
    assert pq.read_schema(path).field(0).type == column.type
    assert found.cast(pa.schema([("column", column.type)]))["column"].to_pylist() == expected


def test_types_that_documents_cannot_hold():
    for kind, message in {
        pa.decimal256(60, 2): "more than 38 digits",
        pa.struct([("", pa.int8())]): "without a name",
        pa.list_(pa.struct([("a", pa.int8()), ("A", pa.int8())])): "differ in case",
        pa.month_day_nano_interval(): "DuckDB does not support",
        pa.dense_union([pa.field("a", pa.int8())]): "DuckDB does not support",
    }.items():
        with pytest.raises(ColumnTypeError, match=message):
            plain_type(kind)


NAN, INFINITE = float("nan"), float("inf")
TEXTS = [
    (pa.array([{"a": [1, None], "b": "é"}, None]), ['{"a": [1, null], "b": "é"}', None]),
    (pa.array([[b"\xff"]]), ['["/w=="]']),
    (pa.array([7.0, 0.5, 1e18, NAN]), ["7", "0.5", str(10**18), None]),  # a number has one text, whatever its type
    (pa.array([0, None], pa.timestamp("ns")), ["1970-01-01T00:00:00", None]),  # times as FineWeb writes them
    (pa.array([1], pa.timestamp("ns", "Europe/Berlin")), ["1970-01-01T00:00:00.000000001Z"]),
]


def test_values_become_text():
    for column, expected in TEXTS:
        assert to_text(column).to_pylist() == expected
    assert [label(value) for value in (2020.0, 2020, 0.5, NAN, None, "a")] == ["2020", "2020", "0.5", "", "", "a"]


def test_text_that_is_no_utf8_stays_invalid_for_the_filter_to_find():
    bad = pa.array([b"\xff", b"ok"]).cast(pa.string(), safe=False)
    for column in (bad, pa.ListArray.from_arrays([0, 1, 2], bad)):
        text = to_text(column)
        with pytest.raises(pa.ArrowInvalid, match="UTF8"):
            text.validate(full=True)
        assert text[1].as_py() in {"ok", '["ok"]'}


PLAIN = [*dict.fromkeys(plain_type(kind) for kind, _, _ in VALUES), pa.int8(), pa.int64(), pa.date32()]
EXTREMES = {pa.int8(): -(2**7), pa.int64(): -(2**63) + 1, pa.uint64(): 2**64 - 1, pa.float16(): 2.5}


@pytest.mark.parametrize("one", PLAIN, ids=str)
def test_two_types_have_a_wider_one_or_become_text(one):
    values = {plain_type(kind): (kind, some) for kind, some, _ in VALUES}
    for other in PLAIN:
        as_text = must_be_text([one, other])
        wider = pa.string() if as_text else wider_type([one, other])
        assert as_text or wider == wider_type([other, one]) is not None
        given, some = values.get(one, (one, []))
        column = to_plain(pa.array([*some, EXTREMES[one]] if one in EXTREMES else some, given))
        moved = to_text(column) if as_text else column.cast(wider, safe=False)
        assert moved.null_count == column.null_count
        assert column.type != wider or moved.equals(column)


@pytest.mark.parametrize(
    ("values", "kind", "found", "lost"),
    [
        (pa.array([123.0, None, NAN, INFINITE, -INFINITE]), pa.int64(), [123, None, None, None, None], 0),
        (pa.array([1.5, 1e30, -(2.0**63), 2.0**53]), pa.int64(), [None, None, None, 2**53], 3),
        (pa.array([5.0, NAN], pa.float16()), pa.int64(), [5, None], 0),
        (pa.array(["123", " 5 ", "1e3", "7.0", "many", "", "1.5"]), pa.int64(), [123, 5, 1000, 7, *[None] * 3], 3),
        (pa.array(["0.5", "NaN", "x"]).dictionary_encode(), pa.float64(), [0.5, None, None], 2),
        (pa.array([Decimal("3.00"), Decimal("3.50")]), pa.int64(), [3, None], 1),
        (pa.array([2**64 - 1, 7], pa.uint64()), pa.int64(), [None, 7], 1),
        (pa.array([True]), pa.int64(), [None], 1),
        (pa.array([0.5, INFINITE], pa.float32()), pa.float64(), [0.5, None], 0),
        (pa.nulls(1), pa.int64(), [None], 0),
    ],
    ids=lambda value: str(getattr(value, "type", value))[:40],
)
def test_numbers_are_read_and_those_that_do_not_fit_counted(values, kind, found, lost):
    numbers, gone = to_numbers(values, kind)
    assert (numbers.to_pylist(), numbers.type, gone) == (found, kind, lost)


def test_what_is_no_number_is_none_and_lists_and_times_are_an_error():
    for value in ([0, [1, 2], 0], {"a": 1}, b"1", "1e999999999", 10**400, "--1"):
        assert as_number(value, whole=True) is None
    for column in (pa.array([[1]]), pa.array([1], pa.timestamp("ns"))):
        with pytest.raises(ColumnTypeError, match="of type"):
            to_numbers(column, pa.int64())


def test_a_column_within_structs_is_found_and_read():
    rows = [{"Source": "a", "deep": {"n": 1}}, None, {"Source": None, "deep": None}]
    table = pa.table({"Meta": pa.array(rows), "meta.own": pa.array([1, 2, 3]), "list": pa.array([[{"a": 1}]] * 3)})
    assert locate("meta.source", table.schema) == (("Meta", "Source"), pa.string())
    assert locate("Meta.deep.n", table.schema) == (("Meta", "deep", "n"), pa.int64())
    assert locate("meta.own", table.schema) == (("meta.own",), pa.int64())
    for missing in ("meta.other", "list.a", "other.a", "Meta.Source.a"):
        assert locate(missing, table.schema) == ((missing,), None)
    assert value_at(table, ["Meta", "Source"]).to_pylist() == ["a", None, None]
    assert value_at(table, ["Meta", "deep", "n"]).to_pylist() == [1, None, None]
    assert value_at(table, ["meta.own"]).to_pylist() == [1, 2, 3]
