"""A workspace at a URL: worked on in a local folder that mirrors it.

Promises: a file stands in the local folder only once the same file is whole at the URL, so that whatever a run has seen
finished is finished for every other machine; what the URL holds is the truth, and a local file that it does not hold,
or holds in another version, is forgotten when a run begins. What is only at the URL is copied here when it is read.
Results that Prefect persists, spilled data, parts of unfinished files and hidden files stay on this machine.
"""

import hashlib
import os
import shutil
import sqlite3
import threading
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from fnmatch import fnmatchcase
from pathlib import Path

import pyarrow.parquet as pq

from fineweb_mask.tasks.storage.filesystem import Stored, endpoint
from fineweb_mask.tasks.storage.object_store import Store

INDEX = ".mirrored.sqlite"
ORIGIN = ".url"
"""Says in a local folder which URL it mirrors."""

LOCAL_ONLY = "cache"
"""The folder of a workspace that holds Prefect's results and what is spilled."""

FIRST_SENT, LAST_SENT = "provenance.json", "README.md"
"""Of a folder, what says which files it is made of is sent after them: a reader who begins there finds them all."""


class Mirror:
    """A local folder whose files are at a URL, too. Its methods may be called by several threads.

    Parameters
    ----------
    url
        The folder at the URL.
    root
        The local folder.
    """

    def __init__(self, url: str, root: Path) -> None:
        self.url = url.rstrip("/")
        self.root = root
        self.store = Store(self.url)
        self._lock = threading.RLock()
        self._listing: dict[str, Stored] | None = None
        self._footers: dict[tuple[str, str], pq.FileMetaData] = {}  # by name and version
        self._bringing: dict[str, threading.Lock] = {}

    def name_of(self, path: Path) -> str | None:
        """Return what a local path is called at the URL, or None if it stays on this machine."""
        parts = path.relative_to(self.root).parts
        stays = not parts or parts[0] == LOCAL_ONLY or any(part.startswith(".") for part in parts)
        return None if stays else "/".join(parts)

    def url_of(self, path: Path) -> str:
        """Return where a path of the local folder is at the URL."""
        return "/".join([self.url, *path.relative_to(self.root).parts])

    @property
    def listing(self) -> dict[str, Stored]:
        """What the URL holds, as far as this run knows: asked for once, and kept up with what is written."""
        with self._lock:
            if self._listing is None:
                self._listing = self.store.listed()
            return self._listing

    def look(self) -> None:
        """List the URL again."""
        with self._lock:
            self._listing = self.store.listed()

    def synchronise(self) -> None:
        """List the URL again, and forget every local file that is not what lies there."""
        self.root.mkdir(parents=True, exist_ok=True)
        (self.root / ORIGIN).write_text(f"{self.url}\n", encoding="utf-8")
        self.look()
        known = self._recorded()
        for path in [path for path in self.root.rglob("*") if path.is_file()]:
            name = self.name_of(path)
            if name is None:
                continue
            there, here = self.listing.get(name), path.stat()
            if there is None or known.get(name) != (there.version, here.st_size, here.st_mtime_ns):
                path.unlink()

    def held(self, path: Path) -> Stored | None:
        """Return a file's size and version at the URL, or None if it is not there."""
        name = self.name_of(path)
        return None if name is None else self.listing.get(name)

    def names(self, pattern: str) -> list[Path]:
        """Return where the files at the URL that match a pattern such as `fitted/*.json` are, or would be, here."""
        with self._lock:
            depth = pattern.count("/")
            return [
                self.root / name
                for name in self.listing
                if name.count("/") == depth
                and all(map(fnmatchcase, name.split("/"), pattern.split("/")))
                and self.name_of(self.root / name) is not None
            ]

    def holds_below(self, folder: Path) -> bool:
        """Return whether there is any file below a folder."""
        prefix = f"{self.name_of(folder)}/"
        with self._lock:
            return any(name.startswith(prefix) for name in self.listing)

    def bring(self, path: Path) -> None:
        """Copy a file, or all files below a folder, to this machine unless it is here; nothing if it is nowhere."""
        name = self.name_of(path)
        if name is None or path.is_file():
            return
        with self._lock:
            names = [name] if name in self.listing else [one for one in self.listing if one.startswith(f"{name}/")]
        for one in names:
            self._bring(one)

    def _bring(self, name: str) -> None:
        path = self.root / name
        with self._lock:
            alone = self._bringing.setdefault(name, threading.Lock())
        with alone:
            if path.is_file():
                return
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.parent / f".{path.name}.{uuid.uuid4().hex}.partial"
            try:
                found = self.store.download(name, partial)
                self._record(name, found, partial)
                partial.replace(path)
            finally:
                partial.unlink(missing_ok=True)

    def footer(self, path: Path) -> pq.FileMetaData | None:
        """Return the footer of a Parquet file at the URL, read by range, or None if the file is not there."""
        name = self.name_of(path)
        there = None if name is None else self.listing.get(name)
        if name is None or there is None:
            return None
        known = self._footers.get((name, there.version))
        if known is None:
            with self.store.open(name, there) as file:
                known = pq.read_metadata(file)
            self._footers[name, there.version] = known
        return known

    def send(self, source: Path, path: Path) -> None:
        """Copy a file to the URL, under the name of `path`; `source` is about to be renamed to `path`."""
        name = self.name_of(path)
        if name is not None:
            found = self.store.upload(source, name)
            self._record(name, found, source)
            with self._lock:
                self.listing[name] = found

    def send_folder(self, source: Path, path: Path) -> None:
        """Copy a folder to the URL; files that are about other files go last."""
        for file in in_order_of_sending(source):
            self.send(file, path / file.relative_to(source))

    def prune(self, path: Path) -> None:
        """Remove what the URL holds below a folder and the local folder does not."""
        prefix = f"{self.name_of(path)}/"
        with self._lock:
            stale = [name for name in self.listing if name.startswith(prefix) and not (self.root / name).is_file()]
        self._delete(stale)

    def remove(self, path: Path) -> None:
        """Remove a file here and at the URL."""
        path.unlink(missing_ok=True)
        name = self.name_of(path)
        if name is not None:
            self._delete([name])

    def _delete(self, names: list[str]) -> None:
        self.store.delete(names)
        with self._lock:
            for name in names:
                self.listing.pop(name, None)

    @contextmanager
    def _index(self) -> Iterator[sqlite3.Connection]:
        self.root.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(self.root / INDEX, timeout=60)) as connection, connection:
            connection.execute(
                "CREATE TABLE IF NOT EXISTS files (name TEXT PRIMARY KEY, version TEXT, bytes INTEGER, mtime INTEGER)"
            )
            yield connection

    def _record(self, name: str, found: Stored, source: Path) -> None:
        """Remember which version at the URL a local file is; its time of change stays when it is renamed."""
        here = source.stat()
        with self._lock, self._index() as connection:
            row = (name, found.version, here.st_size, here.st_mtime_ns)
            connection.execute("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?)", row)

    def _recorded(self) -> dict[str, tuple[str, int, int]]:
        try:
            with self._lock, self._index() as connection:
                rows = connection.execute("SELECT name, version, bytes, mtime FROM files").fetchall()
        except sqlite3.DatabaseError:  # damaged: everything is copied anew
            (self.root / INDEX).unlink()
            return {}
        return {name: (version, size, mtime) for name, version, size, mtime in rows}


def in_order_of_sending(folder: Path) -> list[Path]:
    """Return the files of a folder: those in folders, those beside them, the provenance record, the card."""
    last = {FIRST_SENT: 1, LAST_SENT: 2}
    return sorted(
        (path for path in folder.rglob("*") if path.is_file()),
        key=lambda path: (path.parent == folder, last.get(path.name, 0) if path.parent == folder else 0, path),
    )


_mirrors: dict[Path, Mirror] = {}
_lock = threading.Lock()


def mirror_at(url: str, scratch: str | Path | None = None) -> Mirror:
    """Return the one mirror of a URL in a folder for such, None being the user's cache folder."""
    url = url.rstrip("/")
    parent = default_scratch() if scratch is None else Path(scratch).absolute()
    place = hashlib.sha256(f"{endpoint() or ''} {url}".encode()).hexdigest()[:12]
    name = "".join(character if character.isalnum() or character in "._-" else "-" for character in url.split("/")[-1])
    root = parent / f"{name.lstrip('.')[:80]}-{place}"
    with _lock:
        if root not in _mirrors:
            _mirrors[root] = Mirror(url, root)
        return _mirrors[root]


def mirror_in(root: Path) -> Mirror | None:
    """Return the mirror whose local folder this is, of this process or of an earlier one, or None."""
    with _lock:
        if root not in _mirrors and (root / ORIGIN).is_file():
            _mirrors[root] = Mirror((root / ORIGIN).read_text(encoding="utf-8").strip(), root)
        return _mirrors.get(root)


def mirror_of(path: Path) -> Mirror | None:
    """Return the mirror that a local path, absolute, is in, if any."""
    with _lock:
        if not _mirrors:
            return None
        return next((_mirrors[folder] for folder in (path, *path.parents) if folder in _mirrors), None)


def ensure_local(path: Path) -> Path:
    """Return a local path whose file or folder is now here, if it is anywhere."""
    mirror = mirror_of(path)
    if mirror is not None:
        mirror.bring(path)
    return path


def download_tree(url: str) -> Path:
    """Return a local folder with what is at a URL now, but hidden files."""
    mirror = mirror_at(url)
    mirror.synchronise()
    folder = mirror.root / LOCAL_ONLY / "copied"  # without what a mirror keeps beside the files
    shutil.rmtree(folder, ignore_errors=True)
    for name in mirror.listing:
        path = mirror.root / name
        if mirror.name_of(path) is not None:
            mirror.bring(path)
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).hardlink_to(path)
    return folder


def size_of(path: Path) -> int | None:
    """Return the size of a file that is here or at the URL that is mirrored here, or None if there is none."""
    if path.is_file():
        return path.stat().st_size
    mirror = mirror_of(path)
    held = None if mirror is None else mirror.held(path)
    return None if held is None else held.bytes


def default_scratch() -> Path:
    """Return the folder in which workspaces at URLs are worked on."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fineweb-mask"
