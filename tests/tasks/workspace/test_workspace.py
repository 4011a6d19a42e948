"""A workspace is locked by one run, which deletes the partial files of killed runs."""

from pathlib import Path

import pytest

from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.tasks.storage.atomic import tree_files
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.tasks.stage_files import write


def test_a_workspace_is_locked_by_one_run(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "workspace")
    with (
        workspace.exclusive(),
        pytest.raises(WorkspaceError, match="another run"),
        Workspace(workspace.root).exclusive(),
    ):
        pass
    with workspace.exclusive() as again:
        assert again is workspace


def test_locking_a_workspace_deletes_partial_files(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    kept = write(workspace.shard_path("numbers", "a/shard"))
    (kept.parent / ".shard.parquet.0a.partial").write_bytes(b"half")
    (tmp_path / ".dataset.0a.partial" / "data").mkdir(parents=True)
    (tmp_path / ".dataset.0a.partial" / "data" / "x").write_bytes(b"half")
    with workspace.exclusive():
        assert tree_files(tmp_path) == [tmp_path / ".lock", kept]
        assert not (tmp_path / ".dataset.0a.partial").exists()


def test_a_run_that_is_refused_deletes_nothing(tmp_path: Path) -> None:
    partial = tmp_path / ".x.partial"
    with Workspace(tmp_path).exclusive():
        partial.write_bytes(b"being written")
        with pytest.raises(WorkspaceError), Workspace(tmp_path).exclusive():
            pass
        assert partial.exists()
