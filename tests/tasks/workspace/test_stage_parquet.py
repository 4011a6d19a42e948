"""Stage files have their key in the footer, and are current only if it matches."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.tasks.workspace.references import StageFile
from fineweb_mask.tasks.workspace.stage_parquet import FOOTER_KEY, ROW_GROUP_ROWS, current_parquet, stage_file_writer
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.tasks.stage_files import KEY, SCHEMA, batch, fail_after, write


def test_a_stage_file_round_trips_its_footer(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    path = write(workspace.shard_path("numbers", "shard", KEY))
    file = current_parquet(workspace, path, "shard", KEY)
    assert file == StageFile(
        stage="numbers",
        name="shard",
        path=f"numbers/shard.{KEY.tag}.parquet",
        rows=3,
        bytes=path.stat().st_size,
        fingerprint=KEY.fingerprint,
        details={"a": [1, None], "b": 2},
        cached=True,
    )
    assert workspace.resolve(file) == path
    footer = json.loads(pq.read_metadata(path).metadata[FOOTER_KEY])
    assert footer == {**KEY.model_dump(), "details": {"a": [1, None], "b": 2}}


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="stop"), stage_file_writer(tmp_path / "x.parquet", SCHEMA, KEY) as writer:
        fail_after(writer.write(batch()))
    assert list(tmp_path.iterdir()) == []


def test_equal_content_gives_equal_bytes(tmp_path: Path) -> None:
    assert write(tmp_path / "a" / "x.parquet").read_bytes() == write(tmp_path / "b" / "y.parquet").read_bytes()


def test_batches_are_joined_into_row_groups(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    with stage_file_writer(path, SCHEMA, KEY) as writer:
        for _ in range(8):
            writer.write(batch(ROW_GROUP_ROWS // 4))
    metadata = pq.read_metadata(path)
    assert metadata.num_rows == 2 * ROW_GROUP_ROWS
    assert metadata.num_row_groups == 2


def test_an_empty_file_is_a_file(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    with stage_file_writer(path, SCHEMA, KEY):
        pass
    assert pq.read_table(path).equals(SCHEMA.empty_table())


@pytest.mark.parametrize(
    "change", [{"stage": "other"}, {"version": 2}, {"settings": "other"}, {"inputs": "other"}], ids=str
)
def test_a_file_of_another_key_is_not_current(tmp_path: Path, change: dict[str, object]) -> None:
    path = write(tmp_path / "x.parquet")
    assert current_parquet(Workspace(tmp_path), path, "x", KEY) is not None
    assert current_parquet(Workspace(tmp_path), path, "x", KEY.model_copy(update=change)) is None


def test_missing_truncated_and_foreign_files_are_not_current(tmp_path: Path) -> None:
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
