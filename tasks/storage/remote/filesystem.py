"""Open fsspec file systems with credentials from the environment, describe their files, and read them by ranges.

Object stores (s3://, gs://, az://) are read by obstore, all others by fsspec's own implementations.
"""

import errno
import io
import os
from typing import TYPE_CHECKING, Any

import fsspec
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.models.urls import is_url, is_writable_url, names_a_commit
from fineweb_mask.tasks.storage.remote.buckets import open_bucket, split_url
from fineweb_mask.tasks.storage.remote.errors import RemoteError, is_missing, redacted
from fineweb_mask.tasks.storage.remote.retries import attempt

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta

READ_AHEAD_BYTES = 4 * 2**20


def version_tag(meta: "ObjectMeta") -> str:
    """Return what changes with an object: its ETag, in quotes, which some listings leave out, or else its time."""
    tag = meta["e_tag"]
    if tag is None:
        return meta["last_modified"].isoformat()
    return tag if tag.endswith('"') else f'"{tag}"'


class BucketFiles(AbstractFileSystem):  # type: ignore[misc] # fsspec has no types
    """Lists and reads one bucket of an object store through fsspec's interface; paths are `bucket/key`.

    obstore's own (`obstore.fsspec`) lists folder by folder, and holds a file that it copies in memory.
    """

    cachable = False

    def __init__(self, url: str) -> None:
        super().__init__()
        self.protocol, self._bucket, _ = split_url(url)
        self._store = open_bucket(url)

    def info(self, path: str, **_: Any) -> dict[str, Any]:  # noqa: ANN401
        """Return the entry of an object, or of a folder with objects below it."""
        if (found := self.head(path)) is not None:
            return found
        key = self._key(path)
        if not next(iter(self._store.list(key or None, chunk_size=1)), []) and key:
            raise FileNotFoundError(errno.ENOENT, "no such object", path)
        return self._folder(path)

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:  # noqa: ANN401
        """Return the entries of a folder."""
        found = self._store.list_with_delimiter(self._key(path) or None)
        folders = [self._folder(f"{self._bucket}/{key}") for key in found["common_prefixes"]]
        files = [self._file(meta) for meta in found["objects"]]
        entries = [*folders, *(file for file in files if file["name"] != path)]  # itself: what marks an empty folder
        return entries if detail else [entry["name"] for entry in entries]

    def find(self, path: str, maxdepth: int | None = None, withdirs: bool = False, **options: Any) -> Any:  # noqa: ANN401
        """Return all objects below a folder by path; without a `maxdepth`, from one flat listing."""
        if maxdepth is not None:
            return super().find(path, maxdepth, withdirs, **options)
        found = {}
        for page in self._store.list(self._key(path) or None):
            raise_if_stopped()
            found.update({file["name"]: file for file in map(self._file, page)})
        for folder in {name.rpartition("/")[0] for name in found} & found.keys():
            if not found[folder]["size"]:  # what marks an empty folder
                del found[folder]
        if not found and (file := self.head(path)) is not None:
            found = {path: file}
        return found if options.get("detail") else sorted(found)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:  # noqa: ANN401
        """Return an object's content, or its bytes `start` to `end`."""
        options: GetOptions = {} if start is None or end is None else {"range": (start, end)}
        return bytes(self._store.get(self._key(path), options=options).bytes())

    def _open(self, path: str, mode: str = "rb", **options: Any) -> "BucketFile":  # noqa: ANN401
        return BucketFile(self, path, mode, **options)

    def head(self, path: str) -> dict[str, Any] | None:
        """Return the entry of an object, or None if it does not exist."""
        key = self._key(path)
        try:
            return self._file(self._store.head(key)) if key else None
        except FileNotFoundError as error:
            if not is_missing(error):
                raise
            return None

    def _key(self, path: str) -> str:
        return path.partition("/")[2].strip("/")

    def _file(self, meta: "ObjectMeta") -> dict[str, Any]:
        name = f"{self._bucket}/{meta['path']}"
        return {"name": name, "size": meta["size"], "type": "file", "ETag": version_tag(meta)}

    def _folder(self, path: str) -> dict[str, Any]:
        return {"name": path, "size": 0, "type": "directory"}


class BucketFile(AbstractBufferedFile):  # type: ignore[misc] # fsspec has no types
    """Reads an object by ranges."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        content: bytes = self.fs.cat_file(self.path, start, end)
        return content


def open_filesystem(url: str) -> tuple[Any, str]:
    """Return the fsspec file system of a URL or local path, and the path in it.

    Raises
    ------
    RemoteError
        If the protocol is unknown, its library is not installed, or the environment cannot be used.
    """
    if is_writable_url(url):
        return BucketFiles(url), "/".join(split_url(url)[1:]).rstrip("/")
    try:
        options: dict[str, Any] = {"use_listings_cache": False} if is_url(url) else {}
        if url.startswith(("http://", "https://")):
            options["client_kwargs"] = {"trust_env": True}  # it asks through a proxy where there is one
        filesystem, path = fsspec.url_to_fs(url, **options)
    except (ValueError, ImportError) as error:
        raise RemoteError(errno.EINVAL, f"{redacted(url)}: {redacted(str(error))}") from None
    return filesystem, str(path)


def invalidate_listing(filesystem: Any, path: str) -> None:  # noqa: ANN401
    """Clear the listing cache of a file system, unless the path is at a commit of the hub, which never changes."""
    if not names_a_commit(path):
        filesystem.invalidate_cache()


def is_local(filesystem: Any) -> bool:  # noqa: ANN401
    """Return whether a file system is the local one."""
    return "file" in ((filesystem.protocol,) if isinstance(filesystem.protocol, str) else filesystem.protocol)


def version_of(info: dict[str, Any]) -> str:
    """Return a string that changes with the file, from its fsspec `info`; empty if the server sends none."""
    names = ("mtime", "ETag", "etag", "LastModified", "last_modified", "Last-Modified", "blob_id", "created")
    return str(next((info[name] for name in names if info.get(name)), ""))


def size_in(info: dict[str, Any], url: str) -> int:
    """Return a file's size in bytes from its fsspec `info`.

    Raises
    ------
    RemoteError
        If the server does not report it.
    """
    if info.get("size") is None:
        raise RemoteError(
            errno.EINVAL, f"{redacted(url)}: the server does not report the size of this file: download it first"
        )
    return int(info["size"])


class RemoteFile(io.RawIOBase):
    """A binary file at a URL, read by ranges; a range that fails is requested again.

    Raises
    ------
    RemoteError
        Here or while reading: if it cannot be read.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._filesystem, self._path = open_filesystem(url)
        self._position = 0
        self._file = attempt(url, self._open)

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position of the next read, in bytes."""
        base: int = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._file.size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401
        """Read into the buffer up to its end or the end of the file, and return the number of bytes."""
        with memoryview(buffer).cast("B") as view:
            size: int = min(len(view), self._file.size - self._position)
            if size <= 0:
                return 0
            view[:size] = attempt(self._url, self._range, size)
        self._position += size
        return size

    def close(self) -> None:
        """Close the connection."""
        if not self.closed and "_file" in vars(self):
            self._file.close()
        super().close()

    def _open(self) -> Any:  # noqa: ANN401
        invalidate_listing(self._filesystem, self._path)  # HfFileSystem ignores `use_listings_cache`
        file = self._filesystem.open(self._path, "rb", cache_type="none")
        if not file.seekable() or getattr(file, "size", None) is None:
            file.close()
            raise self._no_ranges()
        return file

    def _no_ranges(self) -> RemoteError:
        return RemoteError(
            errno.ESPIPE, f"{redacted(self._url)}: the server does not serve parts of files: download it first"
        )

    def _range(self, size: int) -> bytes:
        raise_if_stopped()
        try:
            self._file.seek(self._position)
            found: bytes = self._file.read(size)
        except ValueError as error:  # fsspec's HTTP file, if the server ignores the range and sends the whole file
            raise self._no_ranges() from error
        if len(found) != size:
            raise self._no_ranges() if len(found) > size else ConnectionError(f"received {len(found)} of {size} bytes")
        return found


def open_source(url: str) -> io.BufferedReader:
    """Open a local file, or a `RemoteFile` with read-ahead for a URL."""
    filesystem, path = open_filesystem(url)
    if is_local(filesystem):
        return open(path, "rb")  # noqa: PTH123
    return io.BufferedReader(RemoteFile(url), READ_AHEAD_BYTES)
