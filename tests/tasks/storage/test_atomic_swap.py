"""Folders are swapped atomically, under the eyes of a reader that never pauses."""

import errno
import os
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from fineweb_mask.tasks.storage import atomic
from fineweb_mask.tasks.storage.atomic import atomic_folder, swap

NAMES = ("data.txt", "card.txt")
TIMES = 60
"""A folder is replaced; a reader that never pauses meets each replacement."""


def write_version(path: Path, version: int) -> None:
    with atomic_folder(path) as folder:
        for name in NAMES:
            (folder / name).write_text(str(version))


def test_two_folders_are_swapped_if_both_are_there(tmp_path: Path) -> None:
    write_version(tmp_path / "a", 1)
    with pytest.raises(FileNotFoundError):
        swap(tmp_path / "a", tmp_path / "b")
    write_version(tmp_path / "b", 2)
    assert swap(tmp_path / "a", tmp_path / "b")
    assert [(tmp_path / name / NAMES[0]).read_text() for name in "ab"] == ["2", "1"]


def read_in(folder: int, name: str) -> str:
    """Read a file of a folder that is open, whatever lies at its path now."""
    file = os.open(name, os.O_RDONLY, dir_fd=folder)
    try:
        return os.read(file, 20).decode()
    finally:
        os.close(file)


def watch(path: Path, until: threading.Event, seen: set[str]) -> tuple[int, int]:
    """Read the folder again and again; return how often it was missing, and how often mixed."""
    missing = mixed = 0
    while not until.is_set():
        try:
            folder = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            missing += 1
            continue
        try:
            versions = {read_in(folder, name) for name in NAMES}
        except FileNotFoundError:  # the old folder, opened just before it was replaced and removed
            continue
        finally:
            os.close(folder)
        mixed += len(versions) > 1
        seen |= versions
    return missing, mixed


def replaced(tmp_path: Path) -> tuple[int, int]:
    """Replace a folder again and again, and return what a reader saw of it."""
    path, until, found = tmp_path / "dataset", threading.Event(), []
    seen: set[str] = set()
    write_version(path, 0)
    reader = threading.Thread(target=lambda: found.append(watch(path, until, seen)))
    reader.start()
    for version in range(1, TIMES):
        write_version(path, version)
    until.set()
    reader.join()
    assert sorted(child.name for child in tmp_path.iterdir()) == ["dataset"]
    assert len(seen) > TIMES // 10
    return found[0]


def test_a_reader_sees_the_old_folder_or_the_new_one(tmp_path: Path) -> None:
    assert replaced(tmp_path) == (0, 0)


def test_without_a_swap_the_folder_is_still_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(atomic, "swap", lambda *_: False)
    _, mixed = replaced(tmp_path)
    assert mixed == 0
    assert (tmp_path / "dataset" / "data.txt").read_text() == str(TIMES - 1)


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOSYS])
def test_a_file_system_without_swaps_is_reported(number: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    refusing = SimpleNamespace(renameat2=lambda *_: -1, renamex_np=lambda *_: -1)
    monkeypatch.setattr(atomic.ctypes, "CDLL", lambda *_, **__: refusing)
    monkeypatch.setattr(atomic.ctypes, "get_errno", lambda: number)
    assert swap(tmp_path / "a", tmp_path / "b") is False
