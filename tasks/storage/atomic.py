"""Write files and folders atomically, and explain errors of a full or read-only disk.

Guarantees: a reader sees a complete file or none. In a remote workspace, a file appears on this machine only after its
upload.
"""

import errno
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fineweb_mask.models.errors import SettingsError, WorkspaceError
from fineweb_mask.tasks.storage.remote.copies import remote_of, upload_order

DISK_REMEDIES = {
    errno.ENOSPC: "free some space there, or choose another workspace",
    errno.EDQUOT: "free some space there, or choose another workspace",
    errno.EROFS: "choose a workspace that can be written",
}

roots_in_use: list[Path] = []
"""Of workspaces: one that is moved while a run goes on is not made again, with a part of what it held."""


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
    for root in roots_in_use:
        if path.is_relative_to(root) and not root.exists():
            raise WorkspaceError(
                f"workspace: {root} was moved or removed while the run went on: put it back, and run again"
            )
    path.parent.mkdir(parents=True, exist_ok=True)
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

    A reader sees the old folder or the new one, but for the instant between two renames, in which there is neither. In
    a remote workspace, the files are uploaded before.
    """
    partial, retired = _partial(path), _partial(path)
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
        if path.exists():
            path.rename(retired)
        partial.rename(path)
        _sync(path.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(retired, ignore_errors=True)


def remove_file(path: Path) -> None:
    """Delete a file if it exists; in a remote workspace, also at the URL."""
    path.unlink(missing_ok=True)
    if (remote := remote_of(path)) is not None:
        remote.delete([remote.name_of(path)])


def tree_files(folder: Path) -> list[Path]:
    """Return all files below a folder, sorted."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


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
        number = error.errno if isinstance(error, OSError) else None
        if type(error).__module__.partition(".")[0] in {"duckdb", "_duckdb", "safetensors", "safetensors_rust"}:
            number = next((one for one in DISK_REMEDIES if os.strerror(one) in str(error)), None)  # only its text tells
        if number not in DISK_REMEDIES:
            raise
        where = Path(str(getattr(error, "filename", None) or folder))
        free = ""
        if number == errno.ENOSPC:  # the unfinished files that filled it are removed by now
            there = next(parent for parent in (where, *where.parents) if parent.is_dir())
            free = f" (more than the {shutil.disk_usage(there).free:,} bytes that are free were needed)"
        raise WorkspaceError(
            f"{work}{': ' if work else ''}{where}: {os.strerror(number)}{free}: {DISK_REMEDIES[number]}; "
            "what was finished before is unchanged"
        ) from error
