"""Columns whose types differ between files are settled before any work."""

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fineweb_mask.tasks.source.column_types import differing, settle
from fineweb_mask.tasks.source.discovery import SourceShard, discover
from tests.tasks.source_files import read, settings, write_lines, write_table

STRUCT = pa.array([{"a": 1}])
OTHER = pa.array([{"b": "é", "c": b"\xff"}])


def shards_of(folder: Path, columns: list[Any], **changes: Any) -> list[SourceShard]:
    folder.mkdir(exist_ok=True)
    for number, column in enumerate(columns):
        extra = {} if column is None else {"extra": column}
        write_table(folder / f"{number}.parquet", text=["some text"], **extra)
    source = settings(folder, **changes)
    return settle(discover(source), source)


@pytest.mark.parametrize(
    ("columns", "as_text"),
    [
        ([STRUCT, pa.array(["x"])], [True, False]),
        ([STRUCT, OTHER, None], [True, True, False]),
        ([pa.array([[1]]), pa.array([{"a": 1}]), pa.array([1])], [True, True, True]),
        ([pa.array([[1]], pa.list_(pa.int32())), pa.array([[1]], pa.large_list(pa.int32()))], [False, False]),
        ([pa.array([["a"]]), pa.array([["a"]], pa.list_(pa.string_view()))], [False, False]),
        ([STRUCT, pa.nulls(1)], [False, False]),
        ([pa.array([1], pa.int8()), pa.array([1], pa.int64()), pa.array([0.5])], [False, False, False]),
        ([pa.array([1]), pa.array(["x"])], [False, False]),
        ([pa.array([b"\xff"]), pa.array(["x"])], [True, False]),
        ([pa.array([1], pa.timestamp("ns")), pa.array([1], pa.timestamp("us"))], [True, True]),
        ([pa.array([1], pa.timestamp("ms")), pa.array([1], pa.timestamp("us"))], [False, False]),
        ([pa.array([1], pa.decimal128(38, 2)), pa.array([1], pa.decimal128(38, 10))], [True, True]),
    ],
    ids=lambda columns: "-".join(str(getattr(column, "type", column)) for column in columns),  # equal in each process
)
def test_a_column_is_text_where_no_type_holds_all_values(
    tmp_path: Path, columns: list[Any], as_text: list[bool]
) -> None:
    shards = shards_of(tmp_path, columns)
    assert [shard.as_text for shard in shards] == [("extra",) if one else () for one in as_text]


def test_nested_values_become_json_text(tmp_path: Path) -> None:
    for shard, expected in zip(
        shards_of(tmp_path, [STRUCT, OTHER, pa.array(["x"])]), ['{"a": 1}', '{"b": "é", "c": "/w=="}', "x"], strict=True
    ):
        table, _ = read(settings(tmp_path / shard.relative), shard.as_text)
        assert table["extra"].to_pylist() == [expected]
        assert table["extra"].type == pa.string()


def test_beside_json_lines_nested_columns_are_text(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", ['{"text": "a", "extra": {"a": 2}}'])
    lines, parquet = sorted(shards_of(tmp_path, [STRUCT]), key=lambda shard: shard.format)
    assert (lines.as_text, parquet.as_text) == ((), ("extra",))


def test_columns_that_are_not_kept_are_not_settled(tmp_path: Path) -> None:
    assert not any(shard.as_text for shard in shards_of(tmp_path, [STRUCT, OTHER], extra_columns=["more"]))
    assert not any(shard.as_text for shard in shards_of(tmp_path, [STRUCT, OTHER], extra_columns=[]))


def test_files_that_cannot_be_read_have_no_say(tmp_path: Path) -> None:
    (tmp_path / "damaged.parquet").write_bytes(b"PAR1 damaged")
    (tmp_path / "away.parquet").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe.parquet")
    shards = shards_of(tmp_path, [STRUCT, OTHER])
    assert [shard.relative for shard in shards if shard.as_text] == ["0.parquet", "1.parquet"]


def test_the_types_are_told_with_the_first_file_of_each(tmp_path: Path) -> None:
    shards = shards_of(tmp_path, [STRUCT, STRUCT, pa.array(["x"])])
    assert differing(shards) == {"extra": "struct<a: int64> in 0.parquet, string in 2.parquet"}
    assert differing(shards_of(tmp_path / "same", [STRUCT, STRUCT])) == {}


def test_a_type_that_ingest_refuses_is_told_like_the_others(tmp_path: Path) -> None:
    wide = pa.array([None], pa.decimal256(60, 2))
    assert "decimal256(60, 2) in 2.parquet" in differing(shards_of(tmp_path, [STRUCT, OTHER, wide]))["extra"]
