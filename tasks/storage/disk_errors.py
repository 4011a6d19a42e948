"""Explain errors of a full or read-only disk: the path, the free bytes and the remedy."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fineweb_mask.models.errors import WorkspaceError

DISK_REMEDIES = {
    errno.ENOSPC: "free some space there, or choose another workspace",
    errno.EDQUOT: "free some space there, or choose another workspace",
    errno.EROFS: "choose a workspace that can be written",
}


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
