"""Read and write a folder of an object store, a workspace through copies on this machine.

A path below the `root` of a `RemoteFolder` stands for the file of that name at the URL: code computes paths as in a
local workspace. Parquet files and texts are read from the URL (`opened`, `read_text`), without what is not needed of
them. What needs a file, such as a model or `sql`, calls `ensure_local` before it opens one.

- `root` is a temporary folder of this process, deleted when it ends, so that no process sees or deletes another's
  copies. A killed process leaves its own in the scratch folder, where it may be deleted by hand.
- Copies stay until the process ends, such as models, which every job reads. A shard's file that a job writes is only at
  the URL.
- A file is uploaded before it appears in `root`, so that a file at the URL is always complete.
- Nothing is listed ahead: whether a file exists, and its size, are asked of the URL, which shows what other machines
  have written or deleted. A file whose name tells its key never changes; others are copied again each time.
- `here` holds what is never uploaded: locks, spilled data, how long jobs took.

Guarantees: listings are never cached; a write is atomic, so that readers see the old object or the complete new one.
obstore deletes the parts of a multipart upload that fails. Those of a killed process stay: a lifecycle rule of the
bucket deletes them.
"""

import errno
import hashlib
import os
import re
import shutil
import threading
import uuid
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fineweb_mask.models.errors import StorageError
from fineweb_mask.models.names import TAGGED
from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.models.urls import is_writable_url
from fineweb_mask.tasks.storage.remote.errors import MissingError, RemoteError, attempt, redacted
from fineweb_mask.tasks.storage.remote.filesystem import RemoteFile, endpoint, objects_below, open_bucket, split_url

UPLOADED_LAST = {"provenance.json": 1, "README.md": 2}
"""Index files of a folder are uploaded last, in this order: a reader who finds one finds every file it refers to."""

SCRATCH = "FINEWEB_MASK_SCRATCH"
"""Environment variable: the parent folder of the copies on this machine."""

TRANSFER_BYTES = 16 * 2**20
"""Bytes of one request of a download or of a multipart upload."""
TRANSFERS_AT_ONCE = 4


class Store:
    """A writable folder of an object store; file names are relative to it, with "/".

    Raises
    ------
    RemoteError
        If the URL is not one of an object store, or the environment cannot be used.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        if not is_writable_url(self.url):
            raise RemoteError(
                errno.EINVAL,
                f"{redacted(self.url)} cannot be written: give a folder, or a URL of s3://, gs:// or az://",
            )
        self._bucket, self._root = open_bucket(self.url), split_url(self.url)[2]

    def url_of(self, name: str) -> str:
        """Return the URL of a file; that of the folder for an empty name."""
        return f"{self.url}/{name}".rstrip("/")

    def sizes(self, folder: str = "") -> dict[str, int]:
        """Return the bytes of all files below a folder by name, without hidden ones; empty if it does not exist.

        Raises
        ------
        RemoteError
            If the bucket does not exist or may not be read, or holds an object whose name has an empty part, "." or
            "..", which cannot be a path.
        """
        found = attempt(self.url, objects_below, self._bucket, self._key(folder))
        sizes = {one["path"].removeprefix(f"{self._root}/"): one["size"] for one in found}
        return {name: size for name, size in sizes.items() if not is_hidden(name)}

    def check_writable(self) -> None:
        """Raise `RemoteError` unless files can be written there; nothing is left."""
        name = f".check-{uuid.uuid4().hex}"
        attempt(self.url, lambda: self._bucket.put(self._key(name), b""))
        self.delete([name])

    def size(self, name: str) -> int | None:
        """Return a file's bytes, or None if it does not exist."""
        with suppress(MissingError):
            return attempt(self.url_of(name), self._bucket.head, self._key(name))["size"]
        return None

    def read(self, name: str) -> bytes | None:
        """Return a small file, or None if it does not exist."""
        with suppress(MissingError):
            return bytes(attempt(self.url_of(name), lambda: self._bucket.get(self._key(name)).bytes()))
        return None

    def download(self, name: str, target: Path) -> None:
        """Download a file to `target`, part by part."""
        with RemoteFile(self.url_of(name)) as source, target.open("wb") as file:
            shutil.copyfileobj(source, file, TRANSFER_BYTES)

    def upload(self, source: Path, name: str) -> None:
        """Upload a file atomically: readers see the old file or the complete new one."""
        raise_if_stopped()
        options: dict[str, Any] = {"chunk_size": TRANSFER_BYTES, "max_concurrency": TRANSFERS_AT_ONCE}
        attempt(self.url_of(name), lambda: self._bucket.put(self._key(name), source, **options))
        if self.size(name) != source.stat().st_size:
            raise RemoteError(errno.EIO, f"{self.url_of(name)} does not exist as it was uploaded: run again")

    def delete(self, names: Iterable[str]) -> None:
        """Delete files; missing files are not an error."""
        for name in names:  # Google's and Azure's stores stop at the first of several that is missing
            with suppress(MissingError):
                attempt(self.url_of(name), self._bucket.delete, self._key(name))

    def _key(self, name: str) -> str:
        return f"{self._root}/{name}".strip("/")


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
        self._copying = threading.Lock()
        try:
            here.mkdir(parents=True, exist_ok=True)
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

    def copy(self, name: str) -> None:
        """Copy a file, or all files below a folder; a file that never changes only if it is not here."""
        path = self.root / name
        with self._copying:
            if TAGGED.search(name) and path.is_file():
                return
            for one in self.sizes(name) or [name]:
                path = self.root / one
                if not (TAGGED.search(one) and path.is_file()):
                    path.parent.mkdir(parents=True, exist_ok=True)
                    partial = path.with_name(f".{path.name}.partial")
                    with suppress(FileNotFoundError):
                        self.download(one, partial)
                        partial.replace(path)


_folders: dict[Path, RemoteFolder] = {}  # by `here`
_lock = threading.Lock()


def remote_folder(url: str) -> RemoteFolder:
    """Return this process's `RemoteFolder` of a URL."""
    url = url.rstrip("/")
    code = hashlib.sha256(f"{endpoint() or ''} {url}".encode()).hexdigest()[:12]
    last = re.sub(r"[^\w.-]", "-", url.rpartition("/")[2]).lstrip(".")
    here = default_scratch() / f"{last[:80]}-{code}"
    with _lock:
        if here not in _folders:
            _folders[here] = RemoteFolder(url, here)
        return _folders[here]


def default_scratch() -> Path:
    """Return the parent folder of the copies on this machine: that in `SCRATCH`, else the user's cache folder."""
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
    folder = remote_of(path)
    return path if folder is None else RemoteFile(folder.url_of(folder.name_of(path)))


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
    with suppress(FileNotFoundError, NotADirectoryError):
        return path.stat().st_size
    return None


def upload_order(folder: Path) -> list[Path]:
    """Return the files of a folder in upload order: files in subfolders, other files, provenance.json, README.md.

    Hidden files are left out.
    """
    files = [
        path for path in folder.rglob("*") if path.is_file() and not is_hidden(path.relative_to(folder).as_posix())
    ]
    return sorted(files, key=lambda path: (path.parent == folder and 1 + UPLOADED_LAST.get(path.name, 0), path))


def download_tree(url: str, folder: Path) -> None:
    """Download a folder without its hidden files."""
    store = Store(url)
    for name in store.sizes():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        store.download(name, folder / name)
