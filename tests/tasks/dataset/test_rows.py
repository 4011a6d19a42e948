"""Rows: the selected ones, in order, in folders named by the layout's values, for columns of any name and type."""

import re
import shutil
import unicodedata
from collections import Counter
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from itertools import combinations
from typing import Any
from urllib.parse import unquote

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.models.columns import must_be_text, plain_type
from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.models.schemas import FINEWEB
from fineweb_mask.tasks.dataset.rows import common_schema, folder_name
from fineweb_mask.tasks.storage.atomic import tree_files
from tests.tasks.conftest import HOSTILE_DUMPS, materialize_again, parts, selected_rows, snapshot


def test_the_dataset_is_the_selected_rows_in_order(built: Any) -> None:
    expected = selected_rows(built)
    assert len(expected) == built.counts.selected == built.dataset.rows > 10
    by_dump = {path.parent.name: pq.read_table(path) for path in parts(built.workspace)}
    assert set(by_dump) == {row["dump"] for row in expected}
    assert len(by_dump) == 2
    for dump, table in by_dump.items():
        assert table.to_pylist() == [row for row in expected if row["dump"] == dump]


def test_columns_come_in_order_with_their_types(built: Any) -> None:
    for path in parts(built.workspace):
        schema = pq.read_schema(path)
        assert schema.names == [*FINEWEB.names, "space", "quality", "inclusion", "block"]
        assert [schema.field(name).type for name in FINEWEB.names] == FINEWEB.types
        assert [schema.field(name).type for name in schema.names[9:]] == [pa.float32()] * 3 + [pa.string()]


def test_a_flat_layout_holds_the_same_rows(copied: Any) -> None:
    copied.making.with_settings(layout="flat").write()
    [path] = parts(copied.workspace)
    assert path.relative_to(copied.workspace.dataset).as_posix() == "data/part-00000.parquet"
    assert pq.read_table(path).to_pylist() == selected_rows(copied)
    assert "data/part-*.parquet" in (copied.workspace.dataset / "README.md").read_text()


def test_any_column_can_be_the_layout(copied: Any) -> None:
    materialize_again(copied, layout="url")  # a folder each, so all shards are read at once
    expected = selected_rows(copied)
    found = {path.parent.name: pq.read_table(path).to_pylist() for path in parts(copied.workspace)}
    assert found == {folder_name(row["url"]): [row] for row in expected}


def test_a_layout_that_no_column_has_is_refused(copied: Any) -> None:
    before = snapshot(copied.workspace.dataset)
    with pytest.raises(WorkspaceError, match=r"layout: no column 'lang', it may be 'flat' or one of text, id, d"):
        materialize_again(copied, layout="lang")
    assert snapshot(copied.workspace.dataset) == before


def test_a_layout_of_too_many_folders_is_refused(copied: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fineweb_mask.tasks.dataset.rows.MAX_FOLDERS", 3)
    with pytest.raises(WorkspaceError, match=r"materialize\.layout: 'url' has 16 values, a folder each"):
        materialize_again(copied, layout="url")


def data_digests(workspace: Any) -> dict[str, str]:
    return {name: found for name, found in snapshot(workspace.dataset).items() if name.startswith("data/")}


@pytest.mark.parametrize("layout", ["dump", "flat", "url"])
def test_bytes_do_not_depend_on_threads_or_memory(copied: Any, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found, connect = [], duckdb.connect
    for threads, memory_limit in ((1, "2GB"), (4, "2GB"), (4, "100MB")):

        def with_threads(*given: Any, config: dict[str, Any] | None = None, threads: int = threads) -> Any:
            return connect(*given, config={**(config or {}), "threads": threads})

        monkeypatch.setattr(duckdb, "connect", with_threads)
        materialize_again(copied, layout=layout, memory_limit=memory_limit)
        found.append(data_digests(copied.workspace))
    assert found[0] == found[1] == found[2]


TYPES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "large_string": (pa.large_string(), ["a", None]),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), ["a", None]),
    "day": (pa.date32(), [date(2024, 2, 29), None]),
    "nanoseconds": (pa.timestamp("ns"), [datetime(2024, 1, 2, 3, 4, 5, 678901), None]),  # noqa: DTZ001
    "zoned": (pa.timestamp("us", "Europe/Berlin"), [datetime(2024, 1, 2, tzinfo=UTC), None]),
    "time": (pa.time32("ms"), [time(1, 2, 3), None]),
    "duration": (pa.duration("us"), [timedelta(seconds=1), None]),
    "decimal": (pa.decimal128(38, 4), [Decimal("1.2345"), None]),
    "binary": (pa.binary(), [b"\xff\x00", None]),
    "fixed": (pa.binary(2), [b"ab", None]),
    "unsigned": (pa.uint64(), [2**64 - 1, None]),
    "half": (pa.float16(), [1.5, None]),
    "boolean": (pa.bool_(), [True, None]),
    "list": (pa.large_list(pa.int8()), [[1, None], None]),
    "vector": (pa.list_(pa.float16(), 2), [[1, 2], None]),
    "nested": (pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))]), [{"a": 1, "b": ["x"]}, None]),
    "map": (pa.map_(pa.string(), pa.int32()), [[("k", 1)], None]),
    "nothing": (pa.null(), [None, None]),
    "ключ 雪 ..": (pa.string(), ["x", None]),
}


@pytest.fixture(scope="module")
def of_all_types(make_workspace: Callable[..., Any], make_document: Callable[..., Any]) -> Any:
    """A workspace with a column of every type; each test rebuilds its dataset."""
    fields = [pa.field(name, kind) for name, (kind, _) in TYPES.items()]
    rows = [make_document(i) | {name: values[i % 2] for name, (_, values) in TYPES.items()} for i in range(6)]
    return make_workspace("types", {"a.parquet": (rows, fields)})


@pytest.mark.parametrize("layout", ["dump", "url"])
def test_columns_of_any_type_come_out_as_they_went_in(of_all_types: Any, layout: str) -> None:
    materialize_again(of_all_types, layout=layout)
    source = pq.read_table(of_all_types.shards[0].url.removeprefix("file://"))
    paths = parts(of_all_types.workspace)
    found = {row["id"]: row for path in paths for row in pq.read_table(path).to_pylist()}
    schema = pq.read_schema(paths[0])
    for name in TYPES:
        assert schema.field(name).type == plain_type(source.schema.field(name).type)
    for row in source.to_pylist():
        assert {name: found[row["id"]][name] for name in source.column_names} == row


TAKEN = ["s0", "d0", "folder", "number", "file", "line", "rows", "chosen", "documents", 'it\'s "x"; --']


@pytest.fixture(scope="module")
def of_taken_names(make_workspace: Callable[..., Any], make_document: Callable[..., Any]) -> Any:
    """A workspace with columns of names that queries use; each test rebuilds its dataset."""
    rows = [make_document(i) | {name: f"{name} {i}" for name in TAKEN} for i in range(6)]
    return make_workspace("names", {"a.parquet": (rows, [pa.field(name, pa.string()) for name in TAKEN])})


@pytest.mark.parametrize("layout", ["dump", "url", "s0"])
def test_columns_may_be_called_what_a_query_might_call_its_own(of_taken_names: Any, layout: str) -> None:
    materialize_again(of_taken_names, layout=layout)
    files = tree_files(of_taken_names.workspace.dataset / "data")
    found = [row for path in files for row in pq.read_table(path).to_pylist()]
    assert {row["id"]: [row[name] for name in TAKEN] for row in found} == {
        f"<urn:uuid:{i}>": [f"{name} {i}" for name in TAKEN] for i in range(6)
    }


def test_files_of_a_shard_that_is_no_longer_there_are_not_read(copied: Any) -> None:
    before = data_digests(copied.workspace)
    for files in (copied.documents, copied.scores, copied.masks):
        path = copied.workspace.resolve(files[0])
        shutil.copy2(path, path.with_name("zzz.parquet"))
    materialize_again(copied)
    assert data_digests(copied.workspace) == before


def test_hostile_dumps_stay_inside_the_data_folder(hostile_dumps: Any) -> None:
    data = hostile_dumps.workspace.dataset / "data"
    paths = parts(hostile_dumps.workspace)
    assert all(path.parent.parent == data and path.resolve() == path for path in paths)
    folders = {path.parent.name for path in paths}
    assert len(folders) == len(HOSTILE_DUMPS) - 2  # null, empty and "unknown" share one
    known = [dump for dump in HOSTILE_DUMPS if dump and len(dump) <= 200]
    assert {unquote(folder) for folder in folders if len(folder) < 200} == set(known)
    assert not {path.name for path in tree_files(hostile_dumps.workspace.root.parent)} & {"x", "b"}
    rows = [row for path in paths for row in pq.read_table(path).to_pylist()]
    expected = selected_rows(hostile_dumps)
    assert sorted(rows, key=lambda row: row["id"]) == sorted(expected, key=lambda row: row["id"])
    assert Counter(row["dump"] for row in rows) == Counter(HOSTILE_DUMPS)


def test_columns_of_the_source_are_carried_between(hostile_dumps: Any) -> None:
    for path in parts(hostile_dumps.workspace):
        names = pq.read_schema(path).names
        assert names == [*FINEWEB.names, "tags", 'say "hi"', "space", "quality", "inclusion", "block"]


@pytest.mark.parametrize("dump", [name for name in HOSTILE_DUMPS if name])
def test_a_folder_s_name_is_one_plain_part(dump: str) -> None:
    name = folder_name(dump)
    assert re.fullmatch(r"[a-z0-9%~-][a-z0-9_.%~A-F-]*(?<!\.)|CC-MAIN-2024-10", name, re.ASCII)
    assert len(name) < 256
    assert name.split(".")[0] not in {"con", "nul"}


def test_folder_names_differ_where_dumps_do_also_where_a_disk_ignores_case() -> None:
    dumps = {*filter(None, HOSTILE_DUMPS), "%2E", "%2E.", "..%2Fx", "é" * 50, "é" * 51, "CASE", "%43ase", "%43ON"}
    dumps |= {"Cc-main-2024-10", "CC-MAIN-2024-1O", "_", "__", ".", "..", "X" * 300, "COM1", "com1", "lpt9.a.b", "%"}
    names = {folder_name(dump): dump for dump in dumps}
    assert len({unicodedata.normalize("NFC", name).casefold() for name in names}) == len(dumps)
    assert all(unquote(name) == dump for name, dump in names.items() if len(name) <= 200)


@pytest.mark.parametrize("value", ["CC-MAIN-2024-10", "CC-MAIN-2009-2010", "en", "unknown", "example.org", "a_b-c~1"])
def test_an_ordinary_value_is_its_folder_s_name(value: str) -> None:
    assert folder_name(value) == value


def test_shards_with_different_columns_make_one_dataset(
    make_workspace: Callable[..., Any], make_document: Callable[..., Any]
) -> None:
    one, two = pa.field("one", pa.string()), pa.field("two", pa.int64())
    whole, broken = pa.field("n", pa.int64()), pa.field("n", pa.float64())
    rows_a = [make_document(i, dump="A", one="x", n=i) for i in range(6)]
    rows_b = [make_document(i, dump="B", two=i, n=i / 2) for i in range(6, 12)]
    built = make_workspace("different", {"a.parquet": (rows_a, [one, whole]), "b.parquet": (rows_b, [two, broken])})
    rows = [row for path in parts(built.workspace) for row in pq.read_table(path).to_pylist()]
    assert {row["id"]: (row["one"], row["two"], row["n"]) for row in rows} == {
        f"<urn:uuid:{i}>": ("x", None, i) if i < 6 else (None, i, i / 2) for i in range(12)
    }
    schemas = [pq.read_schema(path) for path in parts(built.workspace)]
    assert len(schemas) == 2  # one file for each dump
    assert schemas[0].equals(schemas[1])


def test_types_that_nothing_unites_become_text() -> None:
    numbers = pa.schema([pa.field("a", pa.int64()), pa.field("b", pa.int64())])
    texts = pa.schema([pa.field("a", pa.string()), pa.field("b", pa.float64()), pa.field("c", pa.bool_())])
    expected = pa.schema([pa.field("a", pa.string()), pa.field("b", pa.float64()), pa.field("c", pa.bool_())])
    assert common_schema([numbers, texts]).equals(expected)
    assert common_schema([texts, numbers, texts]).equals(expected)


PAIRS = list(combinations(TYPES, 2))


@pytest.fixture(scope="module")
def of_differing_types(make_workspace: Callable[..., Any], make_document: Callable[..., Any]) -> Any:
    """A workspace of two shards with a column for every two types: one has the one, the other the other."""
    files: dict[str, Any] = {}
    for side, (file, dump) in enumerate((("a.parquet", "A"), ("b.parquet", "B"))):
        of_pair = {f"{pair[0]} {pair[1]}": TYPES[pair[side]] for pair in PAIRS}
        rows = [
            make_document(6 * side + i, dump=dump) | {name: values[i % 2] for name, (_, values) in of_pair.items()}
            for i in range(6)
        ]
        files[file] = (rows, [pa.field(name, kind) for name, (kind, _) in of_pair.items()])
    return make_workspace("pairs", files)


@pytest.mark.parametrize("changes", [{"layout": "dump"}, {"layout": "url"}, {"layout": "flat"}], ids=str)
def test_no_two_types_of_a_column_end_a_run(of_differing_types: Any, changes: dict[str, Any]) -> None:
    materialize_again(of_differing_types, **changes)
    paths = parts(of_differing_types.workspace)
    rows = [row for path in paths for row in pq.read_table(path).to_pylist()]
    schema = pq.read_schema(paths[0])
    assert len(rows) == 12
    for pair in PAIRS:
        name, kinds = " ".join(pair), [plain_type(TYPES[part][0]) for part in pair]
        given = [sum(values[i % 2] is not None for i in range(6)) for _, values in (TYPES[part] for part in pair)]
        assert sum(row[name] is not None for row in rows) == sum(given)
        if must_be_text(kinds):
            assert schema.field(name).type == pa.string()
    nested = {row["list map"] for row in rows}
    assert nested == {None, "[1, null]", '[["k", 1]]'}


def test_a_column_that_two_shards_spell_differently_is_refused() -> None:
    schemas = [pa.schema([pa.field(name, pa.string())]) for name in ("Source", "source")]
    with pytest.raises(WorkspaceError, match="column 'source' is 'Source' in other files"):
        common_schema(schemas)
