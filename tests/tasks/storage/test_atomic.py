"""Readers see a complete file or folder, or none; errors of a full disk say what was done, and what to do."""

import errno
import os
import re
import stat
from pathlib import Path

import duckdb
import numpy as np
import pytest
from safetensors import SafetensorError
from safetensors.numpy import save_file

from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.tasks.storage.atomic import atomic_folder, atomic_write, disk_errors_explained
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.tasks.stage_files import fail_after


@pytest.mark.parametrize(
    ("replaced", "write", "read"),
    [
        (atomic_write, Path.write_text, Path.read_text),
        (
            atomic_folder,
            lambda path, text: (path / text).touch(),
            lambda path: " ".join(file.name for file in path.iterdir()),
        ),
    ],
)
def test_what_is_written_replaces_the_old_one_or_leaves_it_on_error(tmp_path, replaced, write, read):
    path = tmp_path / "new" / "name"
    for text in ("one", "two"):
        with replaced(path) as partial:
            write(partial, text)
            assert partial.parent == path.parent
        assert read(path) == text
    with pytest.raises(ValueError, match="stop"), replaced(path) as partial:
        fail_after(write(partial, "half"))
    assert read(path) == "two"
    assert list(path.parent.iterdir()) == [path]


def test_files_of_a_folder_have_the_mode_of_other_files(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with atomic_folder(tmp_path / "folder") as partial:
            save_file({"a": np.ones(3)}, partial / "model.safetensors")  # readable by its owner only
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "folder" / "model.safetensors").stat().st_mode) == 0o640


def test_nothing_is_written_in_a_workspace_that_was_moved_away(tmp_path: Path) -> None:
    with Workspace(tmp_path / "workspace").in_use() as workspace:
        with atomic_write(workspace.root / "a" / "file.txt") as partial:
            partial.write_text("one")
        workspace.root.rename(tmp_path / "away")
        for write in (atomic_write, atomic_folder):
            with pytest.raises(WorkspaceError, match="moved or removed while the run went on: put it back"):
                write(workspace.root / "a" / "other").__enter__()
    assert [path.name for path in tmp_path.iterdir()] == ["away"]


def test_errors_of_a_full_disk_and_a_used_up_quota_say_what_was_done_and_what_to_do(tmp_path: Path) -> None:
    def explained(error: Exception) -> str:
        with pytest.raises(WorkspaceError) as found, disk_errors_explained(tmp_path, "embed a"):
            raise error
        return str(found.value)

    path = str(tmp_path / "x.parquet")
    full = explained(OSError(errno.ENOSPC, "No space left on device", path))
    assert re.match(rf"embed a: {re.escape(path)}: No space left on device \(more than the [\d,]+ bytes", full)
    quota = explained(OSError(errno.EDQUOT, "Disk quota exceeded", path))
    assert quota.startswith(f"embed a: {path}: Disk quota exceeded: free some space there")
    of_duckdb = explained(duckdb.IOException(f'IO Error: Could not write file "{path}": No space left on device'))
    assert of_duckdb.startswith(f"embed a: {tmp_path}: No space left on device (more than")
    of_safetensors = explained(SafetensorError("I/O error: No space left on device (os error 28)"))
    assert of_safetensors.startswith(f"embed a: {tmp_path}: No space left on device (more than")
    with pytest.raises(OSError, match="Input/output"), disk_errors_explained(tmp_path):
        raise OSError(errno.EIO, "Input/output error")
