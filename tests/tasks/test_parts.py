"""Parts of a file in the making: read back only whole, of the same key, rows and columns."""

import pyarrow as pa
import pytest

from tasks.lake import StageKey
from tasks.parts import Parts

SCHEMA = pa.schema([pa.field("row", pa.uint32()), pa.field("x", pa.float16())])
KEY = StageKey(stage="embed", version=1, settings="a", inputs="b")


def batch(first, count):
    return pa.record_batch([pa.array(range(first, first + count)), [0.5] * count], schema=SCHEMA)


@pytest.fixture
def output(tmp_path):
    return tmp_path / "embeddings" / "a.parquet"


def test_a_part_is_read_back(output):
    parts = Parts(output, KEY)
    assert parts.read(0, 3, SCHEMA) is None
    parts.write(0, batch(0, 3))
    parts.write(3, batch(3, 2))
    assert Parts(output, KEY).read(0, 3, SCHEMA).equals(batch(0, 3))
    assert Parts(output, KEY).read(3, 2, SCHEMA).equals(batch(3, 2))


def test_a_part_of_other_rows_or_columns_is_none(output):
    parts = Parts(output, KEY)
    parts.write(0, batch(0, 3))
    assert parts.read(0, 4, SCHEMA) is None
    assert parts.read(1, 3, SCHEMA) is None
    assert parts.read(0, 3, SCHEMA.remove(1)) is None


@pytest.mark.parametrize("damage", [lambda content: content[:-9], lambda _: b"", lambda _: b"x" * 300])
def test_a_damaged_part_is_none(output, damage):
    parts = Parts(output, KEY)
    parts.write(0, batch(0, 3))
    [path] = output.parent.rglob("*.arrow")
    path.write_bytes(damage(path.read_bytes()))
    assert parts.read(0, 3, SCHEMA) is None


def test_parts_of_another_key_are_removed(output):
    Parts(output, KEY).write(0, batch(0, 3))
    other = Parts(output, KEY.model_copy(update={"inputs": "c"}))
    assert other.read(0, 3, SCHEMA) is None
    assert not list(output.parent.rglob("*.arrow"))


def test_nothing_is_left_when_the_whole_is_written(output):
    parts, neighbour = Parts(output, KEY), Parts(output.with_name("b.parquet"), KEY)
    parts.write(0, batch(0, 3))
    neighbour.write(0, batch(0, 3))
    parts.discard()
    assert parts.read(0, 3, SCHEMA) is None
    assert neighbour.read(0, 3, SCHEMA) is not None
    parts.discard()
