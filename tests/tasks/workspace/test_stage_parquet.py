"""Stage files have their key in the footer, and are current only if it matches; named arrays come back as written."""

import json
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.tasks.workspace.references import StageFile
from fineweb_mask.tasks.workspace.stage_parquet import (
    FOOTER_KEY,
    ROW_GROUP_ROWS,
    current_parquet,
    read_arrays,
    read_stage_footer,
    stage_file_writer,
    write_arrays,
)
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.tasks.stage_files import KEY, SCHEMA, batch, fail_after, write


def test_a_stage_file_round_trips_its_footer(tmp_path):
    workspace = Workspace(tmp_path)
    path = write(workspace.shard_path("numbers", "shard", KEY))
    file = current_parquet(workspace, path, "shard", KEY)
    facts = {"rows": 3, "bytes": path.stat().st_size, "details": {"a": [1, None], "b": 2}, "cached": True}
    names = {"stage": "numbers", "name": "shard", "path": f"numbers/shard.{KEY.tag}.parquet"}
    assert file == StageFile(**names, fingerprint=KEY.fingerprint, **facts)
    assert workspace.resolve(file) == path
    footer = json.loads(pq.read_metadata(path).metadata[FOOTER_KEY])
    assert footer == {**asdict(KEY), "details": {"a": [1, None], "b": 2}}


def test_a_failed_write_leaves_nothing(tmp_path):
    with pytest.raises(ValueError, match="stop"), stage_file_writer(tmp_path / "x.parquet", SCHEMA, KEY) as writer:
        fail_after(writer.write(batch()))
    assert list(tmp_path.iterdir()) == []


def test_equal_content_gives_equal_bytes(tmp_path):
    assert write(tmp_path / "a" / "x.parquet").read_bytes() == write(tmp_path / "b" / "y.parquet").read_bytes()
    for path in (paths := [tmp_path / "a.parquet", tmp_path / "b.parquet"]):
        write_arrays(path, KEY, {"x": np.arange(5)}, {"passes": 2})
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert read_stage_footer(paths[0]) == (1, KEY, {"passes": 2})


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


def test_a_file_of_another_key_is_not_current(tmp_path):
    path = write(tmp_path / "x.parquet")
    assert current_parquet(Workspace(tmp_path), path, "x", KEY) is not None
    changes: list[dict[str, Any]] = [{"stage": "other"}, {"version": 2}, {"settings": "other"}, {"inputs": "other"}]
    for change in changes:
        assert current_parquet(Workspace(tmp_path), path, "x", replace(KEY, **change)) is None


def test_missing_truncated_and_foreign_files_are_not_current(tmp_path):
    workspace, path = Workspace(tmp_path), tmp_path / "x.parquet"
    assert current_parquet(workspace, path, "x", KEY) is None
    whole = write(path).read_bytes()
    for damaged in (whole[:-1], whole[: len(whole) // 2], b"", b"not parquet at all"):
        path.write_bytes(damaged)
        assert current_parquet(workspace, path, "x", KEY) is None
    pq.write_table(pa.table({"row": [1]}), path)
    assert current_parquet(workspace, path, "x", KEY) is None
    path.unlink()
    path.mkdir()
    assert current_parquet(workspace, path, "x", KEY) is None


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
