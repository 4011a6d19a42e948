"""Files and folders that are written whole.

Promises: a reader sees a whole file or none; in the mirror of a URL, a file stands here only once it stands there.
"""

import ctypes
import errno
import os
import shutil
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fineweb_mask.tasks.storage.mirror import mirror_of

AT_FDCWD = -100  # "relative to the working folder", which an absolute path ignores
RENAME_EXCHANGE = 2  # linux/fs.h
RENAME_SWAP = 2  # sys/stdio.h of macOS
UNSUPPORTED = frozenset({errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP})


def _partial(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.parent / f".{path.name}.{uuid.uuid4().hex}.partial"


def _sync(path: Path) -> None:
    """Have a file or folder reach the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Give a temporary path beside `path`; rename it to `path` once the block ends without an error.

    In the mirror of a URL, it is sent there before.
    """
    partial = _partial(path)
    try:
        yield partial
        _sync(partial)
        mirror = mirror_of(path)
        if mirror is not None:
            mirror.send(partial, path)
        partial.replace(path)
        _sync(path.parent)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Give a temporary folder beside `path`; put it in `path`'s place once the block ends without an error.

    A reader finds the old folder or the new one; only where the file system cannot exchange two folders (some network
    shares) is there an instant without either. In the mirror of a URL, its files are sent there before.
    """
    partial = _partial(path)
    partial.mkdir()
    mirror = mirror_of(path)
    try:
        yield partial
        for file in tree_files(partial):
            _sync(file)
        if mirror is not None:
            mirror.send_folder(partial, path)
        if not path.exists():
            partial.rename(path)
        elif not swap(partial, path):
            retired = _partial(path)
            path.rename(retired)
            partial.rename(path)
            shutil.rmtree(retired)
        _sync(path.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)  # after an exchange, the old one
    if mirror is not None:
        mirror.prune(path)


def remove_file(path: Path) -> None:
    """Remove a file, here and, in the mirror of a URL, there; it is no error if there is none."""
    path.unlink(missing_ok=True)
    mirror = mirror_of(path)
    if mirror is not None:
        mirror.remove(path)


def tree_files(folder: Path) -> list[Path]:
    """Return all files below a folder, sorted."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def swap(one: Path, other: Path) -> bool:
    """Swap two files or folders of one file system in one step; return False where it cannot be done so.

    Whoever opens a path before the step finds what was there, whoever opens it after finds the other.

    Raises
    ------
    OSError
        If either is not there, or may not be renamed.
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
