"""Readers see a complete file or folder, or none."""

import os
from pathlib import Path

import pytest

from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.tasks.storage.atomic import atomic_folder, atomic_write, make_folder, tree_files, written_beside
from tests.tasks.stage_files import fail_after


def test_atomic_write_replaces_the_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.txt"
    for text in ("one", "two"):
        with atomic_write(path) as partial:
            partial.write_text(text)
            assert partial.parent == path.parent
        assert path.read_text() == text
    assert os.listdir(path.parent) == ["file.txt"]  # noqa: PTH208


def test_atomic_write_keeps_the_old_file_on_error(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_text("old")
    with pytest.raises(ValueError, match="stop"), atomic_write(path) as partial:
        fail_after(partial.write_text("half"))
    assert path.read_text() == "old"
    assert tree_files(tmp_path) == [path]


def test_atomic_folder_replaces_the_folder_and_keeps_it_on_error(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    for name in ("one", "two"):
        with atomic_folder(path) as partial:
            (partial / name).write_text(name)
        assert [file.name for file in tree_files(path)] == [name]
    with pytest.raises(ValueError, match="stop"), atomic_folder(path) as partial:
        fail_after((partial / "three").write_text("half"))
    assert [file.name for file in tree_files(tmp_path)] == ["two"]
    assert list(tmp_path.iterdir()) == [path]


def test_nothing_is_written_in_a_folder_that_was_moved_away(tmp_path: Path) -> None:
    workspace, away = tmp_path / "workspace", tmp_path / "away"
    (workspace / "a").mkdir(parents=True)
    (workspace / "marker").touch()
    with written_beside(workspace / "marker"):
        with atomic_write(workspace / "a" / "file.txt") as partial:
            partial.write_text("one")
        workspace.rename(away)
        for write in (atomic_write, atomic_folder):
            with pytest.raises(WorkspaceError, match="moved or removed while the run went on: put it back"):
                write(workspace / "a" / "other").__enter__()
        make_folder(tmp_path / "elsewhere")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["away", "elsewhere"]
    make_folder(workspace)
