"""Open fsspec file systems with credentials from the environment, describe their files, and read them by ranges.

Object stores (s3://, gs://, az://) are reached by obstore, all others by fsspec's own implementations. obstore reads
keys, tokens and the roles of machines; profiles, in the files below ~/.aws, it does not read.
"""

import asyncio
import errno
import io
import os
from collections.abc import Callable
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fsspec
from fsspec.asyn import AsyncFileSystem
from obstore.fsspec import FsspecStore
from obstore.store import AzureStore, GCSStore, S3Store

from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.models.urls import is_url, is_writable_url, names_a_commit
from fineweb_mask.tasks.storage.remote.errors import OF_OBJECT_STORES, RemoteError, attempt, redacted

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ClientConfig, ObjectStore

READ_AHEAD_BYTES = 4 * 2**20
REQUEST_SECONDS = 60
"""Longest duration of one request to an object store."""
VARIABLES = ("AWS_", "AZURE_", "GOOGLE_")
STORES: dict[str, Callable[..., "ObjectStore"]] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}


def endpoint() -> str | None:
    """Return the URL of the S3-compatible server that the environment names; None for Amazon's."""
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")


def open_bucket(url: str) -> "ObjectStore":
    """Return obstore's client for the bucket of a URL; equal environments share its connections.

    Raises
    ------
    RemoteError
        If the URL names no bucket, or the environment cannot be used.
    """
    protocol, bucket, _ = split_url(url)
    if not bucket:
        raise RemoteError(errno.EINVAL, f"{redacted(url)} names no bucket: give {protocol}://bucket/folder")
    environment = tuple(sorted(item for item in os.environ.items() if item[0].startswith(VARIABLES)))
    return attempt(url, _open_bucket, protocol, bucket, environment)


@lru_cache(maxsize=32)
def _open_bucket(protocol: str, bucket: str, _environment: tuple[tuple[str, str], ...]) -> "ObjectStore":
    client: ClientConfig = {"timeout": timedelta(seconds=REQUEST_SECONDS), "allow_http": True}
    if certificates := os.environ.get("AWS_CA_BUNDLE"):
        client["root_certificate"] = Path(certificates).read_bytes()
    server = endpoint() if protocol == "s3" else None
    if server is not None and not server.startswith(("http://", "https://")):  # obstore would panic
        raise RemoteError(errno.EINVAL, f"AWS_ENDPOINT_URL={redacted(server)} must begin with https:// or http://")
    options = {} if server is None else {"endpoint": server}
    return STORES[protocol](bucket, client_options=client, retry_config=OF_OBJECT_STORES, **options)


def split_url(url: str) -> tuple[str, str, str]:
    """Return the protocol, the bucket and the key of a URL; the key has no slash at its ends.

    Examples
    --------
    >>> split_url("s3://bucket/folder/file")
    ('s3', 'bucket', 'folder/file')
    """
    protocol, _, rest = url.partition("://")
    bucket, _, key = rest.partition("/")
    return protocol.replace("s3a", "s3"), bucket, key.strip("/")


def objects_below(bucket: "ObjectStore", key: str) -> "list[ObjectMeta]":
    """Return all objects below a folder, without those that mark empty folders."""
    found: list[ObjectMeta] = []
    for page in bucket.list(key or None):
        raise_if_stopped()
        found += page
    folders = {one["path"].rpartition("/")[0] for one in found}
    return [one for one in found if one["size"] or one["path"] not in folders]


class BucketFiles(FsspecStore):
    """The files of a bucket, whose paths are `bucket/key`, for fsspec.

    They are listed at once: fsspec's walk, folder by folder, leaves out a folder that cannot be listed.
    """

    cachable = False

    def _construct_store(self, bucket: str) -> "ObjectStore":
        return open_bucket(f"{self.protocol}://{bucket}")

    async def _info(self, path: str, **options: Any) -> dict[str, Any]:  # noqa: ANN401
        is_bucket = "/" not in path
        return {"name": path, "size": 0, "type": "directory"} if is_bucket else await super()._info(path, **options)

    async def _find(self, path: str, maxdepth: int | None = None, withdirs: bool = False, **options: Any) -> Any:  # noqa: ANN401
        if maxdepth is not None:
            return await super()._find(path, maxdepth, withdirs, on_error="raise", **options)
        bucket, key = self._split_path(path)
        objects = await asyncio.to_thread(objects_below, self._construct_store(bucket), key)
        found = {
            f"{bucket}/{one['path']}": {**one, "name": f"{bucket}/{one['path']}", "type": "file"} for one in objects
        }
        return found if options.get("detail") else sorted(found)


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
    """A binary file at a URL, read by ranges, each of which is a request that is repeated if it fails.

    Raises
    ------
    RemoteError
        Here or while reading: if it cannot be read.
    """

    def __init__(self, url: str) -> None:
        self._url, self._position = url, 0
        self._filesystem, self._path = open_filesystem(url)
        invalidate_listing(self._filesystem, self._path)  # HfFileSystem ignores `use_listings_cache`
        info = attempt(url, self._filesystem.info, self._path)
        self._size = size_in(info, url)
        if not info.get("partial", True):
            raise self._no_ranges()

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position of the next read, in bytes."""
        self._position = max(0, offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence])
        return self._position

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401
        """Read into the buffer up to its end or the end of the file, and return the number of bytes."""
        raise_if_stopped()
        with memoryview(buffer).cast("B") as view:
            size = min(len(view), self._size - self._position)
            if size <= 0:
                return 0
            view[:size] = attempt(self._url, self._range, self._position, self._position + size)
        self._position += size
        return size

    def _range(self, start: int, end: int) -> bytes:
        # A cache would cut what a server sends instead of a range.
        options = {} if isinstance(self._filesystem, AsyncFileSystem) else {"cache_type": "none"}
        found: bytes = self._filesystem.cat_file(self._path, start=start, end=end, **options)
        if len(found) > end - start:
            raise self._no_ranges()
        if len(found) < end - start:
            raise ConnectionError(f"received {len(found)} of {end - start} bytes")
        return found

    def _no_ranges(self) -> RemoteError:
        return RemoteError(
            errno.ESPIPE, f"{redacted(self._url)}: the server does not serve parts of files: download it first"
        )


def open_source(url: str) -> io.BufferedReader:
    """Open a local file, or a `RemoteFile` with read-ahead for a URL."""
    filesystem, path = open_filesystem(url)
    if is_local(filesystem):
        return open(path, "rb")  # noqa: PTH123
    return io.BufferedReader(RemoteFile(url), READ_AHEAD_BYTES)
