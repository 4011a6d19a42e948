"""Open fsspec file systems with credentials from the environment, describe their files, and read them by ranges.

Object stores (s3://, gs://, az://) are read by obstore, all others by fsspec's own implementations.
"""

import asyncio
import errno
import io
import os
from typing import TYPE_CHECKING, Any

import fsspec
from fsspec.spec import AbstractBufferedFile
from obstore.fsspec import FsspecStore

from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.models.urls import is_url, is_writable_url, names_a_commit
from fineweb_mask.tasks.storage.remote.buckets import objects_below, open_bucket, split_url
from fineweb_mask.tasks.storage.remote.errors import RemoteError, redacted
from fineweb_mask.tasks.storage.remote.retries import attempt

if TYPE_CHECKING:
    from obstore.store import ObjectStore

READ_AHEAD_BYTES = 4 * 2**20


class BucketFiles(FsspecStore):
    """The files of a bucket, whose paths are `bucket/key`, for fsspec: listed at once instead of folder by folder."""

    cachable = False

    def _construct_store(self, bucket: str) -> "ObjectStore":
        return open_bucket(f"{self.protocol}://{bucket}")

    async def _info(self, path: str, **options: Any) -> dict[str, Any]:  # noqa: ANN401
        if "/" not in path:  # the bucket
            return {"name": path, "size": 0, "type": "directory"}
        return await super()._info(path, **options) | {"name": path}

    async def _find(self, path: str, maxdepth: int | None = None, withdirs: bool = False, **options: Any) -> Any:  # noqa: ANN401
        if maxdepth is not None:
            return await super()._find(path, maxdepth, withdirs, **options)
        bucket, key = self._split_path(path)
        objects = await asyncio.to_thread(objects_below, self._construct_store(bucket), key)
        found = {f"{bucket}/{one['path']}": one for one in objects}
        if not options.get("detail"):
            return sorted(found)
        return {name: {**one, "name": name, "type": "file"} for name, one in found.items()}

    def _open(self, path: str, mode: str = "rb", **options: Any) -> "BucketFile":  # type: ignore[override] # noqa: ANN401
        return BucketFile(self, path, mode, **options)


class BucketFile(AbstractBufferedFile):  # type: ignore[misc] # fsspec has no types
    """Reads exactly the ranges of an object that are asked for."""

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
        open_bucket(url)  # or raise
        protocol, bucket, key = split_url(url)
        return BucketFiles(protocol), f"{bucket}/{key}".rstrip("/")  # type: ignore[call-overload] # a str
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
    names = "mtime ETag etag e_tag LastModified last_modified Last-Modified blob_id created".split()
    return str(next((info[name] for name in names if info.get(name)), "")).strip('"')  # some listings have no quotes


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
