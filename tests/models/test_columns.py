"""Columns of all Arrow types are kept in a few, which DuckDB and Parquet give back as they are, or as text."""

import uuid
from collections import Counter
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.models.columns import (
    KEPT_TYPES,
    as_number,
    kept,
    kept_type,
    label,
    locate,
    value_at,
)
from fineweb_mask.models.documents import conform

ID = uuid.UUID(int=5)
VALUES = [  # a type, values, the kept type, and what is kept in it
    (pa.string_view(), ["a", None], pa.string(), ["a", None]),
    (pa.dictionary(pa.int8(), pa.large_string()), ["a", None, "a"], pa.string(), ["a", None, "a"]),
    (pa.binary_view(), [b"\xff"], pa.string(), ["/w=="]),
    (pa.binary(3), [b"abc"], pa.string(), ["YWJj"]),
    (pa.uuid(), [ID.bytes, None], pa.string(), [str(ID), None]),
    (pa.json_(), ['{"a": 1}'], pa.string(), ['{"a": 1}']),
    (pa.list_(pa.string_view()), [["a", None], None], pa.list_(pa.string()), [["a", None], None]),
    (pa.list_view(pa.int8()), [[1], []], pa.string(), ["[1]", "[]"]),
    (pa.list_(pa.float32(), 2), [[1, 2]], pa.list_(pa.float64()), [[1, 2]]),
    (pa.list_(pa.list_(pa.int8())), [[[1]]], pa.string(), ["[[1]]"]),
    (pa.list_(pa.binary()), [[b"\xff"]], pa.string(), ['["/w=="]']),
    (pa.list_(pa.null()), [[None]], pa.null(), None),
    (pa.map_(pa.string(), pa.int8()), [[("a", 1)]], pa.string(), ['[["a", 1]]']),
    (pa.struct({"a": pa.large_string()}), [{"a": "x"}], pa.string(), ['{"a": "x"}']),
    (pa.struct([("", pa.int8()), ("A", pa.int8()), ("a", pa.int8())]), [None], pa.string(), [None]),
    (pa.decimal32(5, 2), [Decimal("1.50")], pa.string(), ["1.50"]),
    (pa.decimal256(60, 2), [Decimal("1.50")], pa.string(), ["1.50"]),
    (pa.month_day_nano_interval(), [(1, 2, 3)], pa.string(), ["[1, 2, 3]"]),
    (pa.bool_(), [True, None], pa.bool_(), [True, None]),
    (pa.uint64(), [2**64 - 1], pa.string(), [str(2**64 - 1)]),
    (pa.uint32(), [2**32 - 1], pa.int64(), [2**32 - 1]),
    (pa.float16(), [1.5], pa.float64(), [1.5]),
    (pa.date64(), [date(2024, 1, 2)], pa.date32(), [date(2024, 1, 2)]),
    (pa.time32("ms"), [time(1)], pa.time64("us"), [time(1)]),
    (pa.duration("us"), [timedelta(seconds=1)], pa.string(), ["0:00:01"]),
    (pa.timestamp("ns"), [datetime(2024, 1, 2)], pa.timestamp("us"), [datetime(2024, 1, 2)]),  # noqa: DTZ001
    (
        pa.timestamp("s", "Europe/Berlin"),
        [datetime(2024, 1, 2, tzinfo=UTC)],
        pa.timestamp("us", "UTC"),
        [datetime(2024, 1, 2, tzinfo=UTC)],
    ),
    (pa.null(), [None], pa.null(), None),
]


@pytest.mark.parametrize(("kind", "values", "kept", "expected"), VALUES, ids=lambda value: str(value)[:40])
def test_columns_are_kept_in_few_types_which_duckdb_gives_back(tmp_path, kind, values, kept, expected):
    assert kept_type(kind) == kept
    if expected is None:
        return
    batch = pa.record_batch({"column": pa.array(values, kind)})
    lost = Counter()
    column = conform(batch, {}, [pa.field("column", kept)], lost)["column"]
    assert (column.type, column.to_pylist(), +lost) == (kept, expected, Counter())
    assert KEPT_TYPES[str(kept)] == kept
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"column": column}), path)
    with duckdb.connect() as connection:
        connection.sql("SET TimeZone = 'UTC'")
        found = connection.sql(f"SELECT * FROM '{path}'").to_arrow_table()
    assert found.cast(pa.schema([("column", column.type)]))["column"].to_pylist() == expected


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
        assert kept(column, pa.string())[0].to_pylist() == expected
    assert [label(value) for value in (2020.0, 2020, 0.5, NAN, None, "a")] == ["2020", "2020", "0.5", "", "", "a"]


def test_text_that_is_no_utf8_stays_invalid_for_the_filter_to_find_and_is_lost_within_others():
    bad = pa.array([b"\xff", b"ok"]).cast(pa.string(), safe=False)
    text, lost = kept(bad, pa.string())
    with pytest.raises(pa.ArrowInvalid, match="UTF8"):
        text.validate(full=True)
    assert (text[1].as_py(), lost) == ("ok", 0)
    text, lost = kept(pa.ListArray.from_arrays([0, 1, 2], bad), pa.string())
    assert (text.to_pylist(), lost) == ([None, '["ok"]'], 1)


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
        (pa.array([[1]]), pa.int64(), [None], 1),
        (pa.array([1], pa.timestamp("ns")), pa.int64(), [None], 1),
        (pa.array([0.5, INFINITE], pa.float32()), pa.float64(), [0.5, None], 0),
        (pa.nulls(1), pa.int64(), [None], 0),
    ],
    ids=lambda value: str(getattr(value, "type", value))[:40],
)
def test_numbers_are_read_and_those_that_do_not_fit_counted(values, kind, found, lost):
    numbers, gone = kept(values, kind)
    assert (numbers.to_pylist(), numbers.type, gone) == (found, kind, lost)


def test_what_is_no_number_is_none():
    for value in ([0, [1, 2], 0], {"a": 1}, b"1", "1e999999999", 10**400, "--1"):
        assert as_number(value, whole=True) is None


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
