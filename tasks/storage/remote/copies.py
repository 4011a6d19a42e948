"""Read and write a workspace at a URL through copies on this machine.

A path below the `root` of a `RemoteFolder` stands for the file of that name at the URL. Code computes paths as in a
local workspace, and calls `ensure_local` before it opens one.

- `root` is a temporary folder of this process, so that no process sees or deletes another's copies. It is deleted when
  the process ends; the folder of a killed process is deleted by the next one.
- A job's files are copied when it reads them, and deleted when the last job that reads them ends (`local_copies`): the
  disk holds what the jobs of one moment read and write. Outside of such a block, copies stay until the process ends.
- A file is uploaded before it appears in `root`, so that a file at the URL is always complete.
- Nothing is listed ahead: whether a file exists, and its size, are asked of the URL, which shows what other machines
  have written or deleted. A file whose name tells its key never changes; others are copied again in each block.
- Fitted models, which every job reads, stay until the process ends.
- `here` holds what is never uploaded: locks, spilled data, how long jobs took.
"""

import errno
import fcntl
import hashlib
import os
import shutil
import threading
import uuid
import weakref
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import TextIO

from fineweb_mask.models.errors import StorageError
from fineweb_mask.models.names import TAGGED
from fineweb_mask.tasks.storage.remote.buckets import endpoint
from fineweb_mask.tasks.storage.remote.filesystem import FileInfo, RemoteFile
from fineweb_mask.tasks.storage.remote.object_store import Store

FITTED = "fitted"
"""Folder of a workspace whose files, models, stay on this machine until the process ends."""

UPLOADED_LAST = {"provenance.json": 1, "README.md": 2}
"""Index files of a folder are uploaded last, in this order: a reader who finds one finds every file it refers to."""

SCRATCH = "FINEWEB_MASK_SCRATCH"
"""Environment variable: the parent folder of the copies on this machine."""

_block: ContextVar["set[tuple[RemoteFolder, str]] | None"] = ContextVar("copies", default=None)


@contextmanager
def local_copies() -> Iterator[None]:
    """Delete the copies that the block makes when it ends, except those that another block still uses."""
    used = set[tuple[RemoteFolder, str]]()
    token = _block.set(used)
    try:
        yield
    finally:
        _block.reset(token)
        for folder, name in used:
            folder.release(name)


class RemoteFolder:
    """A folder at a URL, and the copies of its files that this process makes. Its methods are thread-safe.

    Parameters
    ----------
    url
        The folder.
    here
        The folder on this machine for what is not uploaded.

    Attributes
    ----------
    root
        The folder of the copies.

    Raises
    ------
    StorageError
        If `root` cannot be made.
    """

    def __init__(self, url: str, here: Path) -> None:
        self.url = url
        self.here = here
        self.store = Store(url)
        self.root = here.with_name(f"{here.name}.{uuid.uuid4().hex[:12]}")
        self._lock = threading.Lock()
        self._blocks = Counter[str]()  # of `local_copies`, in which a copy is used
        self._copying = defaultdict[str, threading.Lock](threading.Lock)
        try:
            made = here.with_name(f".{self.root.name}")  # not seen by `_remove_left` before it is locked
            made.mkdir(parents=True)
            lock = (made / ".lock").open("w")  # the system unlocks it when the process ends
            fcntl.flock(lock, fcntl.LOCK_EX)
            made.rename(self.root)
            _remove_left(here)
        except OSError as error:
            raise StorageError(
                f"engine.scratch: {self.root.parent}, which files of {url} are copied to, cannot be used: "
                f"{error.strerror}: give a folder that can be written"
            ) from error
        weakref.finalize(self, _remove, self.root, lock, os.getpid())

    def name_of(self, path: Path) -> str | None:
        """Return the name at the URL of a path below `root`, or None for a hidden file, which is not uploaded."""
        parts = path.relative_to(self.root).parts
        return None if not parts or any(part.startswith(".") for part in parts) else "/".join(parts)

    def url_of(self, path: Path) -> str:
        """Return the URL of a path below `root`."""
        return "/".join([self.url, *path.relative_to(self.root).parts])

    def files(self, folder: str = "") -> dict[str, FileInfo]:
        """Return the size and version of every file at the URL below a folder, by name; hidden files are left out."""
        found = self.store.list_files(folder)
        return {name: info for name, info in found.items() if self.name_of(self.root / name) is not None}

    def sizes(self, folder: Path) -> dict[str, int]:
        """Return the size of every file at the URL below a folder in `root`, by its path relative to that."""
        found = self.files("/".join(folder.relative_to(self.root).parts))
        return {(self.root / name).relative_to(folder).as_posix(): info.bytes for name, info in found.items()}

    def info(self, path: Path) -> FileInfo | None:
        """Return a file's size and version at the URL, or None if it does not exist there."""
        name = self.name_of(path)
        return None if name is None else self.store.info(name)

    def exists(self, path: Path) -> bool:
        """Return whether the URL has this file, or any file below this folder."""
        name = self.name_of(path)
        return name is not None and (self.store.info(name) is not None or bool(self.store.list_files(name)))

    def open(self, path: Path) -> RemoteFile:
        """Open a file at the URL, to read parts of it without a copy.

        Raises
        ------
        FileNotFoundError
            If the URL has no such file.
        """
        name, info = self.name_of(path), self.info(path)
        if name is None or info is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.url_of(path))
        return RemoteFile(self.store.url_of(name), info)

    def download(self, path: Path) -> None:
        """Copy a file, or all files below a folder, unless they are here."""
        name = self.name_of(path)
        if name is None:
            return
        if TAGGED.search(name):
            self._use(name)
            if path.is_file():
                return
        for one in self.files(name) if self.store.info(name) is None else [name]:
            self._copy(one)

    def _copy(self, name: str) -> None:
        path = self.root / name
        with self._copying[name]:
            if not self._use(name) and path.is_file():
                return
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.parent / f".{path.name}.{uuid.uuid4().hex}.partial"
            try:
                self.store.download(name, partial)
                partial.replace(path)
            finally:
                partial.unlink(missing_ok=True)

    def upload(self, source: Path, path: Path) -> None:
        """Upload `source` under the name of `path`, and rename it to `path`."""
        if (name := self.name_of(path)) is not None:
            self._use(name)
            self.store.upload(source, name)
        source.replace(path)

    def upload_folder(self, source: Path, path: Path) -> None:
        """Upload a folder under the name of `path`, index files last, and delete other files below that name.

        The caller renames `source` to `path`.
        """
        files = {self.name_of(path / file.relative_to(source)): file for file in upload_order(source)}
        for name, file in files.items():
            if name is not None:
                self._use(name)
                self.store.upload(file, name)
        self.store.delete(self.files("/".join(path.relative_to(self.root).parts)).keys() - files)

    def delete(self, path: Path) -> None:
        """Delete a file at the URL, but not its copy."""
        if (name := self.name_of(path)) is not None:
            self.store.delete([name])

    def _use(self, name: str) -> bool:
        """Have a copy stay until the block ends; return whether it is new there, and may be of an older version."""
        block, may_change = _block.get(), TAGGED.search(name) is None
        if block is None or (name.startswith(f"{FITTED}/") and not may_change):
            return may_change
        with self._lock:
            is_new = (self, name) not in block
            block.add((self, name))
            self._blocks[name] += is_new
            return is_new and may_change

    def release(self, name: str) -> None:
        """End a block's use of a copy, and delete it if no other block uses it."""
        with self._lock:
            self._blocks[name] -= 1
            if not self._blocks[name]:
                del self._blocks[name]
                (self.root / name).unlink(missing_ok=True)


def _remove_left(here: Path) -> None:
    """Delete the copies of processes that were killed."""
    for lock in here.parent.glob(f"{here.name}.*/.lock"):
        with suppress(FileNotFoundError, BlockingIOError), lock.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.parent, ignore_errors=True)


def _remove(root: Path, lock: TextIO, process: int) -> None:
    if os.getpid() == process:  # and not one that it forked
        shutil.rmtree(root, ignore_errors=True)
    lock.close()


_folders: dict[Path, RemoteFolder] = {}  # by `here`
_chosen: dict[str, Path] = {}  # `here` by its name, where a scratch folder was named
_lock = threading.Lock()


def remote_folder(url: str, scratch: str | Path | None = None) -> RemoteFolder:
    """Return this process's `RemoteFolder` of a URL, whose files are copied to a folder below `scratch`.

    By default it is the folder that was named before for this URL, else the one in `SCRATCH`, else the user's cache
    folder: which one is a matter of the machine, so that jobs carry the URL only.
    """
    url = url.rstrip("/")
    code = hashlib.sha256(f"{endpoint() or ''} {url}".encode()).hexdigest()[:12]
    name = "".join(character if character.isalnum() or character in "._-" else "-" for character in url.split("/")[-1])
    name = f"{name.lstrip('.')[:80]}-{code}"
    with _lock:
        if scratch is not None:
            _chosen[name] = Path(scratch).absolute() / name
        here = _chosen.get(name, default_scratch() / name)
        if here not in _folders:
            _folders[here] = RemoteFolder(url, here)
        return _folders[here]


def default_scratch() -> Path:
    """Return the parent folder of the copies on this machine, where no other was named."""
    if named := os.environ.get(SCRATCH):
        return Path(named).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fineweb-mask"


def remote_of(path: Path) -> RemoteFolder | None:
    """Return the remote folder whose `root` contains a path, or None for a local file."""
    return next((folder for folder in list(_folders.values()) if path.is_relative_to(folder.root)), None)


def ensure_local(path: Path) -> Path:
    """Copy a file or folder of a remote workspace to this machine, and return its path."""
    if (folder := remote_of(path)) is not None:
        folder.download(path)
    return path


def read_text(path: Path) -> str:
    """Return the content of a small file."""
    with local_copies():
        return ensure_local(path).read_text(encoding="utf-8")


def size_of(path: Path) -> int | None:
    """Return the size in bytes of a local or remote file, or None if it does not exist."""
    with suppress(FileNotFoundError):
        return path.stat().st_size
    folder = remote_of(path)
    info = None if folder is None else folder.info(path)
    return None if info is None else info.bytes


def upload_order(folder: Path) -> list[Path]:
    """Return the files of a folder in upload order: files in subfolders, other files, provenance.json, README.md."""
    return sorted(
        (path for path in folder.rglob("*") if path.is_file()),
        key=lambda path: (path.parent == folder, path.parent == folder and UPLOADED_LAST.get(path.name, 0), path),
    )


def download_tree(url: str, folder: Path) -> None:
    """Download a folder without its hidden files."""
    store = Store(url)
    for name in store.list_files():
        if not any(part.startswith(".") for part in name.split("/")):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            store.download(name, folder / name)
