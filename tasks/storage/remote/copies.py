"""Read and write a workspace at a URL through copies on this machine.

A path below the `root` of a `RemoteFolder` stands for the file of that name at the URL: code computes paths as in a
local workspace. Parquet files and texts are read from the URL (`opened`, `read_text`), without what is not needed of
them. What needs a file, such as a model or `sql`, calls `ensure_local` before it opens one.

- `root` is a temporary folder of this process, so that no process sees or deletes another's copies. It is deleted when
  the process ends; the folder of a killed process is deleted by the next one that is alone.
- Copies stay until the process ends, such as models, which every job reads. A shard's file that a job writes is only at
  the URL.
- A file is uploaded before it appears in `root`, so that a file at the URL is always complete.
- Nothing is listed ahead: whether a file exists, and its size, are asked of the URL, which shows what other machines
  have written or deleted. A file whose name tells its key never changes; others are copied again each time.
- `here` holds what is never uploaded: locks, spilled data, how long jobs took.
"""

import errno
import fcntl
import glob
import hashlib
import os
import shutil
import threading
import uuid
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from fineweb_mask.models.errors import StorageError
from fineweb_mask.models.names import TAGGED
from fineweb_mask.tasks.storage.remote.buckets import endpoint
from fineweb_mask.tasks.storage.remote.errors import RemoteError
from fineweb_mask.tasks.storage.remote.filesystem import RemoteFile
from fineweb_mask.tasks.storage.remote.object_store import Store

UPLOADED_LAST = {"provenance.json": 1, "README.md": 2}
"""Index files of a folder are uploaded last, in this order: a reader who finds one finds every file it refers to."""

SCRATCH = "FINEWEB_MASK_SCRATCH"
"""Environment variable: the parent folder of the copies on this machine."""


class RemoteFolder(Store):
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
        super().__init__(url)
        self.here = here
        self._copying = defaultdict[str, threading.Lock](threading.Lock)
        try:
            here.mkdir(parents=True, exist_ok=True)
            self._in_use = (here / ".copies").open("w")  # the system unlocks it when the process ends
            with suppress(BlockingIOError):
                fcntl.flock(self._in_use, fcntl.LOCK_EX | fcntl.LOCK_NB)
                for left in here.parent.glob(f"{glob.escape(here.name)}.*"):  # of processes that were killed
                    shutil.rmtree(left, ignore_errors=True)
            fcntl.flock(self._in_use, fcntl.LOCK_SH)
            self._folder = TemporaryDirectory(prefix=f"{here.name}.", dir=here.parent, ignore_cleanup_errors=True)
        except OSError as error:
            raise StorageError(
                f"FINEWEB_MASK_SCRATCH: {here.parent}, which files of {url} are copied to, cannot be used: "
                f"{error.strerror}: give a folder that can be written"
            ) from error
        self.root = Path(self._folder.name)

    def name_of(self, path: Path) -> str:
        """Return the name at the URL of a path below `root`."""
        return "/".join(path.relative_to(self.root).parts)

    def sizes(self, folder: str = "") -> dict[str, int]:
        """Return the bytes of every file below a folder by name, as `Store.sizes`; hidden files are left out."""
        return {name: size for name, size in super().sizes(folder).items() if not is_hidden(name)}

    def has_copy(self, name: str) -> bool:
        """Return whether there is a copy of a file that never changes."""
        return TAGGED.search(name) is not None and (self.root / name).is_file()

    def copy(self, name: str) -> None:
        """Copy a file, or all files below a folder; a file that never changes only if it is not here."""
        for one in [] if self.has_copy(name) else self.sizes(name):
            path = self.root / one
            with self._copying[one]:
                if self.has_copy(one):
                    continue
                path.parent.mkdir(parents=True, exist_ok=True)
                partial = path.parent / f".{path.name}.{uuid.uuid4().hex}.partial"
                try:
                    self.download(one, partial)
                    partial.replace(path)
                finally:
                    partial.unlink(missing_ok=True)


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


def is_hidden(name: str) -> bool:
    """Return whether a file, or a folder that it is in, is hidden: it is never uploaded."""
    return any(part.startswith(".") for part in name.split("/"))


def remote_of(path: Path) -> RemoteFolder | None:
    """Return the remote folder whose `root` contains a path, or None for a local or hidden file."""
    for folder in list(_folders.values()):
        if path.is_relative_to(folder.root):
            return None if is_hidden(folder.name_of(path)) else folder
    return None


def ensure_local(path: Path) -> Path:
    """Copy a file or folder of a remote workspace to this machine, and return its path."""
    if (folder := remote_of(path)) is not None:
        folder.copy(folder.name_of(path))
    return path


def opened(path: Path) -> Path | RemoteFile:
    """Return what a file is read from: its path, or the file at the URL, of which only what is read is downloaded.

    Raises
    ------
    FileNotFoundError
        If the URL has no such file.
    """
    if (folder := remote_of(path)) is None:
        return path
    url = folder.url_of(folder.name_of(path))
    try:
        return RemoteFile(url)
    except RemoteError as error:
        if error.errno == errno.ENOENT:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), url) from error
        raise


def read_text(path: Path) -> str:
    """Return the content of a small file."""
    source = opened(path)
    if isinstance(source, Path):
        return source.read_text(encoding="utf-8")
    with source:
        return source.read().decode()


def size_of(path: Path) -> int | None:
    """Return the size in bytes of a local or remote file, or None if it does not exist."""
    if (folder := remote_of(path)) is not None:
        return folder.size(folder.name_of(path))
    with suppress(FileNotFoundError):
        return path.stat().st_size
    return None


def upload_order(folder: Path) -> list[Path]:
    """Return the files of a folder in upload order: files in subfolders, other files, provenance.json, README.md.

    Hidden files are left out.
    """
    return sorted(
        (path for path in folder.rglob("*") if path.is_file() and not is_hidden(path.relative_to(folder).as_posix())),
        key=lambda path: (path.parent == folder, path.parent == folder and UPLOADED_LAST.get(path.name, 0), path),
    )


def download_tree(url: str, folder: Path) -> None:
    """Download a folder without its hidden files."""
    store = Store(url)
    for name in store.sizes():
        if not is_hidden(name):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            store.download(name, folder / name)
