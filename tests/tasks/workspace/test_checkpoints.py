"""Checkpoints are used only if they are complete and have the same key, rows and columns."""

import pyarrow as pa
import pytest

from fineweb_mask.tasks.workspace.checkpoints import Checkpoints, discard_finished
from fineweb_mask.tasks.workspace.references import StageKey
from fineweb_mask.tasks.workspace.stage_parquet import stage_file_writer
from fineweb_mask.tasks.workspace.workspace import Workspace

SCHEMA = pa.schema([pa.field("row", pa.uint32()), pa.field("x", pa.float16())])
KEY = StageKey(stage="embed", version=1, settings="a", inputs="b")


class Writer:
    def __init__(self, schema=SCHEMA):
        self.schema = schema
        self.written = []

    def batch(self, rows, values):
        return pa.record_batch([rows, values], schema=self.schema)

    def write(self, batch):
        self.written.append(batch)


def rows(first, count):
    return pa.array(range(first, first + count), pa.uint32())


@pytest.fixture
def output(tmp_path):
    return tmp_path / "embeddings" / "a.parquet"


def test_a_checkpoint_is_written_and_found(output):
    writer = Writer()
    parts = Checkpoints(writer, output, KEY)
    assert parts.find(rows(0, 3)) is None
    parts.write(rows(0, 3), [0.5, 1, 2])
    parts.write(rows(3, 2), [3, None])
    second = Writer()
    again = Checkpoints(second, output, KEY)
    for wanted in (rows(0, 3), rows(3, 2)):
        again.restore(again.find(wanted))
    assert second.written == writer.written
    assert [batch["x"].to_pylist() for batch in second.written] == [[0.5, 1, 2], [3, None]]


def test_a_checkpoint_of_other_rows_or_columns_is_ignored(output):
    parts = Checkpoints(Writer(), output, KEY)
    parts.write(rows(0, 3), [0, 1, 2])
    assert parts.find(rows(0, 4)) is None
    assert parts.find(rows(1, 3)) is None
    other = pa.schema([SCHEMA.field("row"), pa.field("x", pa.float32())])
    assert Checkpoints(Writer(other), output, KEY).find(rows(0, 3)) is None
    assert parts.find(rows(0, 3)) is not None


@pytest.mark.parametrize("damage", [lambda content: content[:-9], lambda _: b"", lambda _: b"x" * 300])
def test_a_damaged_checkpoint_is_ignored(output, damage):
    parts = Checkpoints(Writer(), output, KEY)
    parts.write(rows(0, 3), [0, 1, 2])
    [path] = output.parent.rglob("*.arrow")
    path.write_bytes(damage(path.read_bytes()))
    assert parts.find(rows(0, 3)) is None


def test_checkpoints_of_another_key_are_deleted(output):
    Checkpoints(Writer(), output, KEY).write(rows(0, 3), [0, 1, 2])
    other = Checkpoints(Writer(), output, KEY.model_copy(update={"inputs": "c"}))
    assert other.find(rows(0, 3)) is None
    assert not list(output.parent.rglob("*.arrow"))


def test_no_checkpoint_is_left_when_the_file_is_complete(output):
    parts, neighbour = Checkpoints(Writer(), output, KEY), Checkpoints(Writer(), output.with_name("b.parquet"), KEY)
    parts.write(rows(0, 3), [0, 1, 2])
    neighbour.write(rows(0, 3), [0, 1, 2])
    parts.discard()
    assert parts.find(rows(0, 3)) is None
    assert neighbour.find(rows(0, 3)) is not None
    parts.discard()


def test_checkpoints_of_complete_files_are_deleted_and_no_others(output, tmp_path):
    unfinished = [output.with_name("b.parquet"), output.with_name("c.parquet"), output.with_name("d.parquet")]
    for path in (output, *unfinished):
        Checkpoints(Writer(), path, KEY).write(rows(0, 3), [0, 1, 2])
    unfinished[0].write_bytes(b"damaged")
    for path, key in ((output, KEY), (unfinished[1], KEY.model_copy(update={"inputs": "c"}))):
        with stage_file_writer(path, SCHEMA, key) as writer:
            writer.write(pa.record_batch([rows(0, 3), [0, 1, 2]], schema=SCHEMA))
    discard_finished(Workspace(tmp_path))
    left = {path.parent.parent.name for path in output.parent.rglob("*.arrow")}
    assert left == {"b", "c", "d"}
