"""Keep files of a workspace at a URL in a local folder of bounded size.

Guarantees: a file appears in the local folder only after its upload. Files that are only at the URL are downloaded when
they are read. The least recently used leave when room is needed, but none that a job reads (`pinned`). When a run
begins, local files that the URL lacks, or has in another version, are deleted. Spilled data, checkpoints and hidden
files stay local and are not counted.
"""

import errno
import hashlib
import os
import shutil
import threading
import uuid
from fnmatch import fnmatchcase
from pathlib import Path

import pyarrow.parquet as pq

from fineweb_mask.tasks.storage.parquet import read_metadata
from fineweb_mask.tasks.storage.remote.buckets import endpoint
from fineweb_mask.tasks.storage.remote.filesystem import FileInfo
from fineweb_mask.tasks.storage.remote.object_store import Store
from fineweb_mask.tasks.storage.remote.remote_file import RemoteFile
from fineweb_mask.tasks.storage.scratch import Scratch, ScratchError, pinned

ORIGIN = ".url"
"""File in the local folder that names the URL."""

VERSIONS = ".versions"
"""Folder in the local folder with the version of each file, so that a later run knows what it has."""

LOCAL_ONLY = "cache"
"""Folder of a workspace that stays on this machine: how long jobs took, spilled data."""

UPLOADED_LAST = {"provenance.json": 1, "README.md": 2}
"""Index files of a folder are uploaded last, in this order: a reader who finds one finds every file it refers to."""


class Mirror:
    """A local folder that mirrors a folder at a URL. Its methods are thread-safe."""

    def __init__(self, url: str, root: Path) -> None:
        self.url = url.rstrip("/")
        self.root = root
        self.store = Store(self.url)
        self.scratch = Scratch(root, self.remote_name)
        self._lock = threading.RLock()
        self._listing: dict[str, FileInfo] | None = None
        self._footers: dict[tuple[str, str], pq.FileMetaData] = {}  # by name and version
        self._downloads: dict[str, threading.Lock] = {}

    def remote_name(self, path: Path) -> str | None:
        """Return the name of a local path relative to the URL, or None if the path is local only."""
        parts = path.relative_to(self.root).parts
        is_local = not parts or parts[0] == LOCAL_ONLY or any(part.startswith(".") for part in parts)
        return None if is_local else "/".join(parts)

    def url_of(self, path: Path) -> str:
        """Return the URL of a path of the local folder."""
        return "/".join([self.url, *path.relative_to(self.root).parts])

    @property
    def listing(self) -> dict[str, FileInfo]:
        """Files at the URL by name: listed once, then updated by this run's uploads and deletions."""
        with self._lock:
            if self._listing is None:
                self._listing = self.store.list_files()
            return self._listing

    def refresh_listing(self) -> None:
        """List the URL again."""
        with self._lock:
            self._listing = self.store.list_files()

    def synchronise(self) -> None:
        """List the URL again, and delete every local file, of those that fit here, that differs from the one there."""
        self.root.mkdir(parents=True, exist_ok=True)
        (self.root / ORIGIN).write_text(f"{self.url}\n", encoding="utf-8")
        self.refresh_listing()
        for name, path in self.scratch.files():
            remote = self.listing.get(name)
            if remote is None or remote.bytes != path.stat().st_size or self._version(name) != remote.version:
                path.unlink()

    def list_again(self, folder: str) -> None:
        """List a folder of the URL again, and delete the local files that another machine has replaced or deleted."""
        with self._lock:
            before = {name: info for name, info in self.listing.items() if name.startswith(f"{folder}/")}
        found = self.store.list_files(folder)
        with self._lock:
            for name, info in before.items():
                if found.get(name) != info and self.listing.get(name) == info:  # not written here meanwhile
                    del self.listing[name]
                    self.scratch.drop(name)
            self.listing.update({name: info for name, info in found.items() if name not in self.listing})

    def info(self, path: Path) -> FileInfo | None:
        """Return a file's size and version at the URL, or None if it does not exist there."""
        self.look_for(path)
        name = self.remote_name(path)
        return None if name is None else self.listing.get(name)

    def look_for(self, path: Path) -> None:
        """Enter a file, or the files of a folder, that another machine wrote since the files were listed."""
        name = self.remote_name(path)
        if name is None or path.exists() or self._names(path):
            return
        found = self.store.list_files(name)
        with self._lock:
            self.listing.update(found)

    def glob(self, pattern: str) -> list[Path]:
        """Return the local paths, downloaded or not, of files at the URL that match a pattern like `fitted/*.json`."""
        with self._lock:
            depth = pattern.count("/")
            return [
                self.root / name
                for name in self.listing
                if name.count("/") == depth
                and all(map(fnmatchcase, name.split("/"), pattern.split("/")))
                and self.remote_name(self.root / name) is not None
            ]

    def _names(self, path: Path) -> list[str]:
        """Return the names at the URL of a file, or of all files below a folder; none for a local-only path."""
        name = self.remote_name(path)
        with self._lock:
            if name is None or name in self.listing:
                return [] if name is None else [name]
            return [one for one in self.listing if one.startswith(f"{name}/")]

    def exists(self, path: Path) -> bool:
        """Return whether the URL has this file, or any file below this folder."""
        return bool(self._names(path))

    def download(self, path: Path) -> None:
        """Download a file, or all files below a folder, that exist only at the URL; `pinned` keeps them here."""
        self.look_for(path)
        for name in self._names(path):
            self._download(name)

    def _download(self, name: str) -> None:
        path = self.root / name
        self.scratch.use(name)
        with self._lock:
            only_one = self._downloads.setdefault(name, threading.Lock())
        with only_one:
            if path.is_file():
                return
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.parent / f".{path.name}.{uuid.uuid4().hex}.partial"
            try:
                with self.scratch.room_for(name, self.listing[name].bytes):
                    found = self.store.download(name, partial)
                    self._remember_version(name, found)
                    partial.replace(path)
            finally:
                partial.unlink(missing_ok=True)

    def open(self, path: Path) -> RemoteFile:
        """Open a file at the URL, to read parts of it without downloading the rest.

        Raises
        ------
        FileNotFoundError
            If the URL has no such file.
        """
        name, remote = self.remote_name(path), self.info(path)
        if name is None or remote is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.url_of(path))
        return self.store.open(name, remote)

    def footer(self, path: Path) -> pq.FileMetaData | None:
        """Return the footer of a Parquet file at the URL, without downloading the file; None if it does not exist."""
        name, remote = self.remote_name(path), self.info(path)
        if name is None or remote is None:
            return None
        footer = self._footers.get((name, remote.version))
        if footer is None:
            with self.store.open(name, remote) as file:
                footer = read_metadata(file, str(path))
            self._footers[name, remote.version] = footer
        return footer

    def upload(self, source: Path, path: Path) -> None:
        """Upload `source` under the name of `path`, and rename it to `path`; a Parquet file stays only if it fits."""
        name = self.remote_name(path)
        if name is None:
            source.replace(path)
            return
        self._send(source, name)
        try:
            with self.scratch.room_for(name, source.stat().st_size):
                source.replace(path)
                self.scratch.use(name)
        except ScratchError:
            path.unlink(missing_ok=True)  # of an older version
            if path.suffix != ".parquet":  # what is read at once by its path
                raise

    def _send(self, source: Path, name: str) -> None:
        found = self.store.upload(source, name)
        self._remember_version(name, found)
        with self._lock:
            self.listing[name] = found

    def upload_folder(self, source: Path, path: Path) -> set[str]:
        """Upload a folder under the name of `path`, index files last, and return the names at the URL."""
        files = {
            f"{self.remote_name(path)}/{file.relative_to(source).as_posix()}": file for file in upload_order(source)
        }
        with self.scratch.room_for(next(iter(files), ""), sum(file.stat().st_size for file in files.values())):
            for name, file in files.items():
                self._send(file, name)
                self.scratch.use(name)
        return set(files)

    def prune(self, path: Path, kept: set[str]) -> None:
        """Delete the files at the URL below a folder, except those `kept`."""
        prefix = f"{self.remote_name(path)}/"
        with self._lock:
            stale = [name for name in self.listing if name.startswith(prefix) and name not in kept]
        self._delete(stale)

    def delete(self, path: Path) -> None:
        """Delete a file at the URL, but not the local one."""
        name = self.remote_name(path)
        if name is not None:
            self._delete([name])

    def _delete(self, names: list[str]) -> None:
        self.store.delete(names)
        with self._lock:
            for name in names:
                self.listing.pop(name, None)

    def _remember_version(self, name: str, found: FileInfo) -> None:
        path = self.root / VERSIONS / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(found.version, encoding="utf-8")

    def _version(self, name: str) -> str | None:
        """Return which version at the URL the local file is, or None if that is not recorded."""
        try:
            return (self.root / VERSIONS / name).read_text(encoding="utf-8")
        except (OSError, UnicodeError):
            return None


def upload_order(folder: Path) -> list[Path]:
    """Return the files of a folder in upload order: files in subfolders, other files, provenance.json, README.md."""
    return sorted(
        (path for path in folder.rglob("*") if path.is_file()),
        key=lambda path: (path.parent == folder, path.parent == folder and UPLOADED_LAST.get(path.name, 0), path),
    )


SCRATCH = "FINEWEB_MASK_SCRATCH"
"""Environment variable: the parent folder of the mirrors on this machine."""

_mirrors: dict[Path, Mirror] = {}
_chosen: dict[str, Path] = {}  # local folder of a URL, by its name, where a scratch folder was named
_lock = threading.Lock()


def mirror_at(url: str, scratch: str | Path | None = None, scratch_bytes: int | None = None) -> Mirror:
    """Return this process's mirror of a URL below the folder `scratch`, which holds at most `scratch_bytes` of it.

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
        root = _chosen.get(name, default_scratch() / name)
        if root not in _mirrors:
            _mirrors[root] = Mirror(url, root)
        if scratch_bytes is not None:
            _mirrors[root].scratch.limit = scratch_bytes
        return _mirrors[root]


def default_scratch() -> Path:
    """Return the parent folder of the mirrors of this machine, where no other was named."""
    if named := os.environ.get(SCRATCH):
        return Path(named).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fineweb-mask"


def mirror_in(root: Path) -> Mirror | None:
    """Return the mirror that has `root` as its local folder, made by this process or an earlier one, or None."""
    with _lock:
        if root not in _mirrors and (root / ORIGIN).is_file():
            _mirrors[root] = Mirror((root / ORIGIN).read_text(encoding="utf-8").strip(), root)
        return _mirrors.get(root)


def mirror_of(path: Path) -> Mirror | None:
    """Return the open mirror that contains an absolute local path, or None."""
    with _lock:
        if not _mirrors:
            return None
        return next((_mirrors[folder] for folder in (path, *path.parents) if folder in _mirrors), None)


def ensure_local(path: Path) -> Path:
    """Download `path` if it exists only remotely, and return it."""
    mirror = mirror_of(path)
    if mirror is not None:
        mirror.download(path)
    return path


def read_text(path: Path) -> str:
    """Return the content of a small file, downloaded if it exists only remotely."""
    with pinned():
        return ensure_local(path).read_text(encoding="utf-8")


def download_tree(url: str) -> Path:
    """Download a folder without its hidden files, and return the local folder."""
    mirror = mirror_at(url)
    mirror.synchronise()
    folder = mirror.root / LOCAL_ONLY / "copied"  # without the mirror's own files
    shutil.rmtree(folder, ignore_errors=True)
    for name in mirror.listing:
        path = mirror.root / name
        if mirror.remote_name(path) is not None:
            with pinned():
                mirror.download(path)
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).hardlink_to(path)
    return folder


def size_of(path: Path) -> int | None:
    """Return the size in bytes of a local or remote file of a mirror, or None if it does not exist."""
    if path.is_file():
        return path.stat().st_size
    mirror = mirror_of(path)
    info = None if mirror is None else mirror.info(path)
    return None if info is None else info.bytes
