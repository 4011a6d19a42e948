"""Rows: the selected ones, in order, in folders named by the layout's values, for columns of any name and type."""

import re
import unicodedata
from collections import Counter
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from itertools import combinations
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.models.columns import common_type, kept_type
from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.models.schemas import FINEWEB
from fineweb_mask.tasks.dataset.partition import folder_name
from fineweb_mask.tasks.storage.atomic import tree_files
from tests.tasks.conftest import HOSTILE_DUMPS, materialize_again, parts, selected_rows, snapshot
from tests.tasks.dataset.conftest import make


def written_rows(built, **settings):
    """Write the files of a dataset with other settings, without its card; return them and what they hold."""
    made = built.making.with_settings(**settings).written(force=True)
    return [(path, pq.read_table(path)) for path in sorted(made.place.parts.rglob("*.parquet"))]


def test_the_dataset_is_the_selected_rows_in_order_with_their_columns_and_types(built):
    expected = selected_rows(built)
    assert len(expected) == built.counts.selected == built.dataset.rows > 10
    by_dump = {path.parent.name: pq.read_table(path) for path in parts(built.workspace)}
    assert set(by_dump) == {row["dump"] for row in expected}
    assert len(by_dump) == 2
    for dump, table in by_dump.items():
        assert table.to_pylist() == [row for row in expected if row["dump"] == dump]
        assert table.column_names == [*FINEWEB.names, "space", "quality", "inclusion", "block"]
        assert table.schema.types == FINEWEB.types + [pa.float32()] * 3 + [pa.string()]


def test_a_layout_without_a_column_or_of_too_many_folders_is_refused(copied, monkeypatch):
    before = snapshot(copied.workspace.dataset)
    with pytest.raises(WorkspaceError, match=r"layout: no column 'lang', it may be 'flat' or one of text, id, d"):
        materialize_again(copied, layout="lang")
    monkeypatch.setattr("fineweb_mask.tasks.dataset.partition.MAX_FOLDERS", 3)
    with pytest.raises(WorkspaceError, match=r"materialize\.layout: 'url' has more than 3 values, a folder each"):
        materialize_again(copied, layout="url")
    assert snapshot(copied.workspace.dataset) == before


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
TAKEN = ["s0", "d0", "folder", "number", "file", "line", "rows", "chosen", "documents", 'it\'s "x"; --']
"""Names that queries use."""
UNLIKE = ("large_string", "zoned", "decimal", "binary", "unsigned", "half", "list", "map", "nothing")
PAIRS = list(combinations(UNLIKE, 2))


@pytest.fixture(scope="module")
def of_all_columns(make_workspace, make_document):
    """A workspace of two shards with columns of every type, of taken names and, for every two types, one of both."""
    files: dict[str, Any] = {}
    for side, (file, dump) in enumerate((("a.parquet", "A"), ("b.parquet", "B"))):
        kinds = TYPES | {f"{pair[0]} {pair[1]}": TYPES[pair[side]] for pair in PAIRS}
        kinds |= {f"only in {dump}": (pa.string(), ["x", None])}
        rows = [
            make_document(6 * side + i, dump=dump)
            | {name: values[i % 2] for name, (_, values) in kinds.items()}
            | {name: f"{name} {side} {i}" for name in TAKEN}
            for i in range(6)
        ]
        fields = [pa.field(name, kind) for name, (kind, _) in kinds.items()]
        files[file] = (rows, [*fields, *(pa.field(name, pa.string()) for name in TAKEN)])
    return make_workspace("columns", files)


@pytest.mark.parametrize("layout", ["dump", "s0"])
def test_columns_of_any_name_and_type_come_out_in_the_types_of_documents(of_all_columns, layout):
    tables = [table for _, table in written_rows(of_all_columns, layout=layout)]
    assert all(table.schema.equals(tables[0].schema) for table in tables)
    found = {row["id"]: row for table in tables for row in table.to_pylist()}
    assert len(found) == sum(table.num_rows for table in tables) == 12
    pairs = {" ".join(pair): [kept_type(TYPES[kind][0]) for kind in pair] for pair in PAIRS}
    for name, kinds in {**{name: [kept_type(kind)] for name, (kind, _) in TYPES.items()}, **pairs}.items():
        assert tables[0].schema.field(name).type == common_type(kinds)
    for shard in of_all_columns.shards:
        source = pq.read_table(shard.url.removeprefix("file://"))
        for row in source.to_pylist():
            own = found[row["id"]]
            for name, value in row.items():
                assert (own[name] is None) == (value is None)
                if name in TYPES and tables[0].schema.field(name).type != pa.string():
                    assert own[name] == value
            assert {own[f"only in {dump}"] for dump in "AB" if dump != own["dump"]} == {None}
    assert {row["list map"] for row in found.values()} == {None, "[1, null]", '[["k", 1]]'}


def test_scores_are_found_by_row_and_only_selected_documents_need_one(tmp_path):
    making = make(tmp_path, [[("A", row % 3 == 0) for row in range(10)]])
    [shard] = making.shards
    scores, masks = (pq.read_table(making.workspace.resolve(file)) for file in (shard.scores, shard.masks))
    chosen = scores.filter(masks["selected"])
    pq.write_table(chosen, making.workspace.resolve(shard.scores))
    making.written()
    [path] = tmp_path.glob("dataset-parts/**/*.parquet")
    assert pq.read_table(path)["edu"].equals(chosen["edu"])
    pq.write_table(chosen.slice(1), making.workspace.resolve(shard.scores))
    with pytest.raises(WorkspaceError, match="1 selected documents have no score: delete `scores`"):
        making.written(force=True)


def test_hostile_dumps_stay_inside_the_data_folder(hostile_dumps):
    data = hostile_dumps.workspace.dataset / "data"
    paths = parts(hostile_dumps.workspace)
    assert all(path.parent.parent == data and path.resolve() == path for path in paths)
    folders = {path.parent.name for path in paths}
    assert len(folders) == len(HOSTILE_DUMPS) - 2  # null, empty and "unknown" share one
    known = [dump for dump in HOSTILE_DUMPS if dump and len(dump) <= 200]
    assert {unquote(folder) for folder in folders if len(folder) < 200} == set(known)
    assert not {path.name for path in tree_files(hostile_dumps.workspace.root.parent)} & {"x", "b"}
    tables = [pq.read_table(path) for path in paths]
    own = ["tags", 'say "hi"']  # between those of all sources and the scores
    assert all(table.column_names == [*FINEWEB.names, *own, *table.column_names[-4:]] for table in tables)
    rows = [row for table in tables for row in table.to_pylist()]
    expected = selected_rows(hostile_dumps)
    assert sorted(rows, key=lambda row: row["id"]) == sorted(expected, key=lambda row: row["id"])
    assert Counter(row["dump"] for row in rows) == Counter(HOSTILE_DUMPS)


def test_a_folder_s_name_is_one_plain_part_and_an_ordinary_value_as_it_is():
    for dump in filter(None, HOSTILE_DUMPS):
        name = folder_name(dump)
        assert re.fullmatch(r"[a-z0-9%~-][a-z0-9_.%~A-F-]*(?<!\.)|CC-MAIN-2024-10", name, re.ASCII)
        assert len(name) < 256
        assert name.split(".")[0] not in {"con", "nul"}
    for value in ("CC-MAIN-2024-10", "CC-MAIN-2009-2010", "en", "example.org", "a_b-c~1"):
        assert folder_name(value) == value


def test_folder_names_differ_where_dumps_do_also_where_a_disk_ignores_case():
    dumps = {*filter(None, HOSTILE_DUMPS), "%2E", "%2E.", "..%2Fx", "é" * 50, "é" * 51, "CASE", "%43ase", "%43ON"}
    dumps |= {"Cc-main-2024-10", "CC-MAIN-2024-1O", "_", "__", ".", "..", "X" * 300, "COM1", "com1", "lpt9.a.b", "%"}
    names = {folder_name(dump): dump for dump in dumps}
    assert len({unicodedata.normalize("NFC", name).casefold() for name in names}) == len(dumps)
    assert all(unquote(name) == dump for name, dump in names.items() if len(name) <= 200)
