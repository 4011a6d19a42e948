"""Checkpoints are used only if they are complete and have the same key, rows and columns."""

import threading

import pyarrow as pa
import pytest

from fineweb_mask.tasks.workspace.references import StageKey
from fineweb_mask.tasks.workspace.stage_parquet import Checkpoints, discard_finished, stage_file_writer
from fineweb_mask.tasks.workspace.workspace import Workspace

SCHEMA = pa.schema([pa.field("row", pa.uint32()), pa.field("x", pa.float16())])
KEY = StageKey(stage="embed", version=1, settings="a", inputs="b")


def batch(rows, values):
    return pa.record_batch([rows, values], schema=SCHEMA)


def checkpoints(output, written=None, schema=SCHEMA):
    return Checkpoints(schema, ([] if written is None else written).append, output)


def rows(first, count):
    return pa.array(range(first, first + count), pa.uint32())


@pytest.fixture
def output(tmp_path):
    return tmp_path / "embeddings" / "a.parquet"


def test_a_checkpoint_is_written_and_found(output):
    written, second = [], []
    parts = checkpoints(output, written)
    assert parts.find(rows(0, 3)) is None
    parts.write(batch(rows(0, 3), [0.5, 1, 2]))
    parts.write(batch(rows(3, 2), [3, None]))
    again = checkpoints(output, second)
    for wanted in (rows(0, 3), rows(3, 2)):
        again.restore(again.find(wanted))
    assert second == written
    assert [found["x"].to_pylist() for found in second] == [[0.5, 1, 2], [3, None]]


def test_a_checkpoint_of_other_rows_or_columns_is_ignored(output):
    parts = checkpoints(output)
    parts.write(batch(rows(0, 3), [0, 1, 2]))
    assert parts.find(rows(0, 4)) is None
    assert parts.find(rows(1, 3)) is None
    other = pa.schema([SCHEMA.field("row"), pa.field("x", pa.float32())])
    assert checkpoints(output, schema=other).find(rows(0, 3)) is None
    assert parts.find(rows(0, 3)) is not None


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-9],
        lambda _: b"",
        lambda _: b"x" * 300,
        lambda content: content.replace(b"\x00\x3c\x00\x40", b"\x00\x3c\x01\x40"),  # 1 and 2 as float16
    ],
)
def test_a_damaged_checkpoint_is_ignored(output, damage):
    parts = checkpoints(output)
    parts.write(batch(rows(0, 3), [0, 1, 2]))
    [path] = output.parent.rglob("*.arrow")
    content = path.read_bytes()
    path.write_bytes(damage(content))
    assert path.read_bytes() != content
    assert parts.find(rows(0, 3)) is None


def test_no_checkpoint_is_left_when_the_file_is_complete(output):
    parts, neighbour = checkpoints(output), checkpoints(output.with_name("b.parquet"))
    parts.write(batch(rows(0, 3), [0, 1, 2]))
    neighbour.write(batch(rows(0, 3), [0, 1, 2]))
    parts.discard()
    assert parts.find(rows(0, 3)) is None
    assert neighbour.find(rows(0, 3)) is not None
    parts.discard()


def test_another_run_may_complete_the_file_meanwhile(output):
    """It deletes the folder at any moment; the rows are in this run's own file."""
    written, stop = [], threading.Event()

    def discard():
        while not stop.is_set():
            checkpoints(output).discard()

    other = threading.Thread(target=discard)
    other.start()
    try:
        for number in range(100):
            checkpoints(output, written).write(batch(rows(number, 1), [number]))
    finally:
        stop.set()
        other.join()
    assert [found["row"].to_pylist() for found in written] == [[number] for number in range(100)]


def test_checkpoints_of_complete_files_are_deleted_and_no_others(output, tmp_path):
    """Those of another key belong to another file, whose run may go on later."""
    names = {name: output.with_name(f"{name}.parquet") for name in ("a.1", "a.2", "b.1")}
    for path in names.values():
        checkpoints(path).write(batch(rows(0, 3), [0, 1, 2]))
    names["b.1"].write_bytes(b"damaged")
    with stage_file_writer(names["a.1"], SCHEMA, KEY) as writer:
        writer.write(batch(rows(0, 3), [0, 1, 2]))
    discard_finished(Workspace(tmp_path))
    assert {path.parent.name for path in output.parent.rglob("*.arrow")} == {"a.2", "b.1"}
