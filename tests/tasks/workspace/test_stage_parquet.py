"""Stage files are written whole, with their key in the footer; named arrays come back as written."""

import json
from dataclasses import asdict

import numpy as np
import pyarrow.parquet as pq
import pytest

from fineweb_mask.tasks.workspace.stage_parquet import (
    FOOTER_KEY,
    ROW_GROUP_ROWS,
    read_arrays,
    stage_file_writer,
    write_arrays,
)
from tests.tasks.stage_files import KEY, SCHEMA, batch, fail_after, write


def test_a_failed_write_leaves_nothing(tmp_path):
    with pytest.raises(ValueError, match="stop"), stage_file_writer(tmp_path / "x.parquet", SCHEMA, KEY) as writer:
        fail_after(writer.write(batch()))
    assert list(tmp_path.iterdir()) == []


def test_equal_content_gives_equal_bytes(tmp_path):
    assert write(tmp_path / "a" / "x.parquet").read_bytes() == write(tmp_path / "b" / "y.parquet").read_bytes()
    for path in (paths := [tmp_path / "a.parquet", tmp_path / "b.parquet"]):
        write_arrays(path, KEY, {"x": np.arange(5)}, {"passes": 2})
    assert paths[0].read_bytes() == paths[1].read_bytes()
    footer = json.loads(pq.read_metadata(paths[0]).metadata[FOOTER_KEY])
    assert footer == {**asdict(KEY), "details": {"passes": 2}}


@pytest.mark.parametrize(("batches", "row_groups"), [(0, 0), (8, 2)])
def test_batches_are_joined_into_row_groups(tmp_path, batches, row_groups):
    path = tmp_path / "x.parquet"
    with stage_file_writer(path, SCHEMA, KEY) as writer:
        for _ in range(batches):
            writer.write(batch(ROW_GROUP_ROWS // 4))
    metadata = pq.read_metadata(path)
    assert pq.read_schema(path).equals(SCHEMA)
    sizes = [metadata.row_group(place).num_rows for place in range(metadata.num_row_groups)]
    assert sizes == [ROW_GROUP_ROWS] * row_groups


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12, dtype=np.float16).reshape(3, 4),
        np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        np.array(np.pi),
        np.empty((0, 7), dtype=np.float32),
        np.array([b"pairwise", b"disf"]),
        np.array([True, False]),
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
def test_an_array_comes_back(tmp_path, array):
    path = tmp_path / "file.parquet"
    write_arrays(path, KEY, {"one": array, "two": np.zeros(2)}, {})
    found = read_arrays(path)
    assert list(found) == ["one", "two"]
    assert found["one"].dtype == array.dtype
    assert found["one"].shape == array.shape
    np.testing.assert_array_equal(found["one"], array)
    assert found["one"].flags.writeable
    write_arrays(path, KEY, {}, {})
    assert read_arrays(path) == {}


def test_arrays_of_one_prefix_are_read_alone(tmp_path):
    arrays = {"a/x": np.arange(3), "a/y": np.arange(2), "b/x": np.arange(5)}
    write_arrays(tmp_path / "file.parquet", KEY, arrays, {})
    found = {prefix: list(read_arrays(tmp_path / "file.parquet", prefix)) for prefix in "abc"}
    assert found == {"a": ["a/x", "a/y"], "b": ["b/x"], "c": []}
    write_arrays(tmp_path / "none.parquet", KEY, {}, {})
    assert read_arrays(tmp_path / "none.parquet") == {}
