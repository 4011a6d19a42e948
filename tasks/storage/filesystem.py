"""The file systems of fsspec: opened with credentials from the environment, and what they tell of a file."""

import errno
import os
from typing import Any, NamedTuple

import fsspec

from fineweb_mask.models.urls import is_url, names_a_commit
from fineweb_mask.tasks.storage.errors import RemoteError, redacted

TRANSFER_BYTES = 16 * 2**20
"""One part of an upload or download in parts; s3fs's own 50 MiB, ten at a time, would be half a gigabyte."""
TRANSFERS_AT_ONCE = 4


class Stored(NamedTuple):
    """A file at a URL, as a listing tells it."""

    bytes: int
    version: str  # changes with the content


def endpoint() -> str | None:
    """Return the S3-compatible server that the environment names; None is Amazon's, or that of AWS_PROFILE."""
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")


def open_filesystem(url: str) -> tuple[Any, str]:
    """Return the fsspec file system of a URL or local path, and the path in it.

    Credentials come from the environment; the endpoint of an S3 store from AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL.

    Raises
    ------
    RemoteError
        If there is no such protocol.
    """
    options: dict[str, Any] = {}
    if is_url(url):
        options["use_listings_cache"] = False
    if url.startswith(("s3://", "s3a://")):
        options["default_block_size"] = TRANSFER_BYTES
        options["max_concurrency"] = TRANSFERS_AT_ONCE
        # Given, although botocore reads it too: fsspec keeps one file system for equal options.
        if given := endpoint():
            options["endpoint_url"] = given
    try:
        filesystem, path = fsspec.url_to_fs(url, **options)
    except (ValueError, ImportError) as error:
        raise RemoteError(errno.EINVAL, f"{redacted(url)}: {redacted(str(error))}") from None
    return filesystem, str(path)


def look_anew(filesystem: Any, path: str) -> None:  # noqa: ANN401
    """Have a file system forget what it knows of a path, unless that never changes: a commit on the hub."""
    if not names_a_commit(path):
        filesystem.invalidate_cache()


def is_local(filesystem: Any) -> bool:  # noqa: ANN401
    """Return whether a file system is this machine's own."""
    return "file" in ((filesystem.protocol,) if isinstance(filesystem.protocol, str) else filesystem.protocol)


def version_of(info: dict[str, Any]) -> str:
    """Return what tells one state of a file from another, from fsspec's description of it."""
    names = ("mtime", "ETag", "etag", "LastModified", "last_modified", "Last-Modified", "blob_id", "created")
    return str(next((info[name] for name in names if info.get(name)), ""))


def stored(info: dict[str, Any], url: str) -> Stored:
    """Return a file's size and version from fsspec's description of it.

    Raises
    ------
    RemoteError
        If the server does not tell the size.
    """
    if info.get("size") is None:
        raise RemoteError(
            errno.EINVAL, f"{redacted(url)}: the server does not tell the size of this file: download it first"
        )
    return Stored(int(info["size"]), version_of(info))
