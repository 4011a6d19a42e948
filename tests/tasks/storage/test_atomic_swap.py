"""Folders are swapped atomically, under the eyes of a reader that never pauses."""

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from fineweb_mask.tasks.storage import atomic
from fineweb_mask.tasks.storage.atomic import atomic_folder, swap

NAMES = ("data.txt", "card.txt")


def write_version(path: Path, version: int) -> None:
    with atomic_folder(path) as folder:
        for name in NAMES:
            (folder / name).write_text(str(version))


def test_two_folders_are_swapped(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "name").write_text(name)
    assert swap(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a" / "name").read_text() == "b"
    assert (tmp_path / "b" / "name").read_text() == "a"


def test_a_missing_folder_cannot_be_swapped(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(FileNotFoundError):
        swap(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a").is_dir()


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


@pytest.fixture
def watched(tmp_path: Path) -> Callable[[], tuple[int, int, set[str]]]:
    """Return the function that replaces a folder 300 times and tells what a reader saw of it."""

    def replace() -> tuple[int, int, set[str]]:
        path, until, found = tmp_path / "dataset", threading.Event(), []
        seen: set[str] = set()
        write_version(path, 0)
        reader = threading.Thread(target=lambda: found.append(watch(path, until, seen)))
        reader.start()
        for version in range(1, 300):
            write_version(path, version)
        until.set()
        reader.join()
        assert sorted(child.name for child in tmp_path.iterdir()) == ["dataset"]
        return *found[0], seen

    return replace


def test_a_reader_sees_the_old_folder_or_the_new_one(watched: Callable[[], tuple[int, int, set[str]]]) -> None:
    missing, mixed, seen = watched()
    assert (missing, mixed) == (0, 0)
    assert len(seen) > 10


def test_without_a_swap_the_folder_is_still_replaced(
    watched: Callable[[], tuple[int, int, set[str]]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(atomic, "swap", lambda *_: False)
    _, mixed, _ = watched()
    assert mixed == 0
    assert (tmp_path / "dataset" / "data.txt").read_text() == "299"


@pytest.mark.parametrize(("number", "answer"), [(errno.EINVAL, False), (errno.ENOSYS, False)])
def test_a_file_system_without_swaps_is_reported(
    number: int, answer: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Refusing:
        def renameat2(self, *_: object) -> int:
            return -1

        renamex_np = renameat2

    monkeypatch.setattr(atomic.ctypes, "CDLL", lambda *_, **__: Refusing())
    monkeypatch.setattr(atomic.ctypes, "get_errno", lambda: number)
    assert swap(tmp_path / "a", tmp_path / "b") is answer
