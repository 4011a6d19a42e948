"""Write files and folders atomically, and explain errors of a full or read-only disk.

Guarantees: a reader sees a complete file or none. In a remote workspace, a file appears on this machine only after its
upload.
"""

import ctypes
import errno
import os
import shutil
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fineweb_mask.models.errors import SettingsError, WorkspaceError
from fineweb_mask.tasks.storage.remote.copies import remote_of, upload_order

AT_FDCWD = -100  # "relative to the working folder", which an absolute path ignores
RENAME_EXCHANGE = 2  # linux/fs.h
RENAME_SWAP = 2  # sys/stdio.h of macOS
UNSUPPORTED = frozenset({errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP})
DISK_REMEDIES = {
    errno.ENOSPC: "free some space there, or choose another workspace",
    errno.EDQUOT: "free some space there, or choose another workspace",
    errno.EROFS: "choose a workspace that can be written",
}

_markers: list[Path] = []


@contextmanager
def written_beside(marker: Path) -> Iterator[None]:
    """Let this process write files below the folder of `marker` only while that file exists.

    A folder that is moved or removed while work goes on is then not made again, with a part of what it held.
    """
    marker = marker.absolute()
    _markers.append(marker)
    try:
        yield
    finally:
        _markers.remove(marker)


def make_folder(path: Path) -> None:
    """Make a folder for files, and those around it.

    Raises
    ------
    WorkspaceError
        If it is in a folder that is gone, of those that `written_beside` names.
    """
    for marker in _markers:
        if not marker.exists() and path.absolute().is_relative_to(marker.parent):
            raise WorkspaceError(
                f"workspace: {marker.parent} was moved or removed while the run went on: put it back, and run again"
            )
    path.mkdir(parents=True, exist_ok=True)


def check_can_write(folder: Path, setting: str) -> None:
    """Check that files can be written to a folder, or to that in which it would be made; nothing is left there.

    Raises
    ------
    SettingsError
        If not; the message names the `setting`.
    """
    try:
        place = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
        with tempfile.TemporaryFile(dir=place):
            return
    except OSError as error:
        raise SettingsError(
            f"{setting}: nothing can be written to {folder}: {error.strerror}: choose another folder"
        ) from error


def _partial(path: Path) -> Path:
    make_folder(path.parent)
    return path.parent / f".{path.name}.{uuid.uuid4().hex}.partial"


def _sync(path: Path) -> None:
    """Flush a file or folder to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def atomic_write(path: Path, *, is_read_here: bool = True) -> Iterator[Path]:
    """Yield a temporary path next to `path`, and rename it to `path` if the block succeeds.

    In a remote workspace, the file is uploaded before the rename; one that is not read here is only at the URL.
    """
    partial = _partial(path)
    try:
        yield partial
        _sync(partial)
        if (remote := remote_of(path)) is not None:
            remote.upload(partial, remote.name_of(path))
        if remote is None or is_read_here:
            partial.replace(path)
        _sync(path.parent)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder next to `path`, and replace `path` with it if the block succeeds.

    A reader sees the old folder or the new one. On file systems that cannot swap two folders (some network shares),
    there is an instant with neither. In a remote workspace, the files are uploaded before the swap.
    """
    partial = _partial(path)
    partial.mkdir()
    try:
        yield partial
        mode = partial.stat().st_mode & 0o666  # some libraries write files that only their owner may read
        for file in tree_files(partial):
            if file.stat().st_mode & 0o777 != mode:
                file.chmod(mode)
            _sync(file)
        if (remote := remote_of(path)) is not None:
            files = {remote.name_of(path / file.relative_to(partial)): file for file in upload_order(partial)}
            for name, file in files.items():
                remote.upload(file, name)
            remote.delete(remote.sizes(remote.name_of(path)).keys() - files)
        if not path.exists():
            partial.rename(path)
        elif not swap(partial, path):
            retired = _partial(path)
            path.rename(retired)
            partial.rename(path)
            shutil.rmtree(retired)
        _sync(path.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)  # after a swap, the old folder


def remove_file(path: Path) -> None:
    """Delete a file if it exists; in a remote workspace, also at the URL."""
    path.unlink(missing_ok=True)
    if (remote := remote_of(path)) is not None:
        remote.delete([remote.name_of(path)])


def tree_files(folder: Path) -> list[Path]:
    """Return all files below a folder, sorted."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def swap(one: Path, other: Path) -> bool:
    """Atomically swap two files or folders of one file system; return False where the OS or file system cannot.

    Raises
    ------
    OSError
        If one of them does not exist or may not be renamed.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if sys.platform == "linux" and hasattr(libc, "renameat2"):
        failed = libc.renameat2(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE)
    elif sys.platform == "darwin" and hasattr(libc, "renamex_np"):
        failed = libc.renamex_np(os.fsencode(one), os.fsencode(other), RENAME_SWAP)
    else:
        return False
    if not failed:
        return True
    number = ctypes.get_errno()
    if number in UNSUPPORTED:
        return False
    raise OSError(number, os.strerror(number), str(one), None, str(other))


@contextmanager
def disk_errors_explained(folder: Path, work: str = "") -> Iterator[None]:
    """Turn "disk full" and "read-only" errors into messages that name the path, or else `folder`, and the remedy.

    A full disk's message says what `work` was done, such as the stage and the shard, and how many bytes were too few.

    Raises
    ------
    WorkspaceError
        Instead of such an error, also of one that DuckDB or safetensors reports.
    """
    try:
        yield
    except Exception as error:
        number = disk_errno(error)
        if number is None:
            raise
        where = getattr(error, "filename", None) or folder
        free = space_left(number, Path(str(where)))
        what = f"{work}: {where}" if work else where
        raise WorkspaceError(
            f"{what}: {os.strerror(number)}{free}: {DISK_REMEDIES[number]}; what was finished before is unchanged"
        ) from error


def disk_errno(error: Exception) -> int | None:
    """Return the number of an error in `DISK_REMEDIES`; DuckDB and safetensors tell only its text."""
    if isinstance(error, OSError):
        return error.errno if error.errno in DISK_REMEDIES else None
    tells_text = type(error).__module__.partition(".")[0] in {"duckdb", "_duckdb", "safetensors", "safetensors_rust"}
    return next((number for number in DISK_REMEDIES if tells_text and os.strerror(number) in str(error)), None)


def space_left(number: int, path: Path) -> str:
    """Return what was free on a path's disk, if it is full; the unfinished files that filled it are removed by now."""
    with suppress(OSError):
        if number != errno.ENOSPC:
            return ""
        there = next(parent for parent in (path, *path.parents) if parent.is_dir())
        return f" (more than the {shutil.disk_usage(there).free:,} bytes that are free were needed)"
    return ""
