"""Open fsspec file systems with credentials from the environment, and describe their files."""

import errno
import os
from typing import Any, NamedTuple

import fsspec

from fineweb_mask.models.urls import is_url, names_a_commit
from fineweb_mask.tasks.storage.errors import RemoteError, redacted

TRANSFER_BYTES = 16 * 2**20
"""Bytes of one part of a multipart transfer; the defaults of s3fs (50 MiB, ten at once) need half a gigabyte."""
TRANSFERS_AT_ONCE = 4


class FileInfo(NamedTuple):
    """Size and version of a file at a URL."""

    bytes: int
    version: str  # changes with the content


def endpoint() -> str | None:
    """Return the URL of the S3-compatible server that the environment names; None for Amazon's or AWS_PROFILE's."""
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")


def open_filesystem(url: str) -> tuple[Any, str]:
    """Return the fsspec file system of a URL or local path, and the path in it.

    Credentials come from the environment; the endpoint of an S3 store from AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL.

    Raises
    ------
    RemoteError
        If the protocol is unknown or its library is not installed.
    """
    options: dict[str, Any] = {}
    if is_url(url):
        options["use_listings_cache"] = False
    if url.startswith(("s3://", "s3a://")):
        options["default_block_size"] = TRANSFER_BYTES
        options["max_concurrency"] = TRANSFERS_AT_ONCE
        # botocore reads it too, but fsspec caches one file system for equal options.
        if server := endpoint():
            options["endpoint_url"] = server
    try:
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


def file_info(info: dict[str, Any], url: str) -> FileInfo:
    """Return a file's size and version from its fsspec `info`.

    Raises
    ------
    RemoteError
        If the server does not report the size.
    """
    if info.get("size") is None:
        raise RemoteError(
            errno.EINVAL, f"{redacted(url)}: the server does not report the size of this file: download it first"
        )
    return FileInfo(int(info["size"]), version_of(info))
