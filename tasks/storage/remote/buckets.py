"""Connect to S3, Google Cloud Storage and Azure Blob Storage, with credentials from the environment.

obstore reads keys, tokens and the roles of machines; profiles, in the files below ~/.aws, it does not read.
"""

import errno
import os
from collections.abc import Callable
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, S3Store

from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.tasks.storage.remote.errors import CREDENTIALS, RemoteError, is_missing, redacted

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

REQUEST_SECONDS = 60
"""Longest duration of one request, which transfers at most `TRANSFER_BYTES` (object_store.py)."""

RETRIES: "RetryConfig" = {
    "max_retries": 3,
    "retry_timeout": timedelta(seconds=5),
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=2), "base": 2},
}
"""Of single requests, short: obstore hears no request to stop while it waits. `retries.attempt` waits for longer."""

VARIABLES = ("AWS_", "AZURE_", "GOOGLE_")
STORES: dict[str, Callable[..., "ObjectStore"]] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}
SERVERS = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
"""Variables that name a server other than the cloud's own."""


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


def endpoint() -> str | None:
    """Return the URL of the S3-compatible server that the environment names; None for Amazon's."""
    return _server("s3")


def _server(protocol: str) -> str | None:
    """Return the URL of a server other than the cloud's own."""
    return next((os.environ[name] for name in SERVERS[protocol] if os.environ.get(name)), None)


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
    try:
        return _open(protocol, bucket, environment)
    except (BaseError, ValueError) as error:
        reason = redacted(str(error).partition("\n")[0])
    raise RemoteError(errno.EINVAL, f"{redacted(url)}: {reason}: set {CREDENTIALS[protocol]} in the environment")


def objects_below(bucket: "ObjectStore", key: str) -> "list[ObjectMeta]":
    """Return all objects below a folder, or that of this key, without those that mark empty folders."""
    found: list[ObjectMeta] = []
    for page in bucket.list(key or None):
        raise_if_stopped()
        found += page
    folders = {one["path"].rpartition("/")[0] for one in found}
    found = [one for one in found if one["size"] or one["path"] not in folders]
    if not found and key and (one := object_of(bucket, key)) is not None:
        return [one]
    return found


def object_of(bucket: "ObjectStore", key: str) -> "ObjectMeta | None":
    """Return what is known of an object, or None if it does not exist."""
    try:
        return bucket.head(key)
    except FileNotFoundError as error:
        if not is_missing(error):
            raise
        return None


@lru_cache(maxsize=32)
def _open(protocol: str, bucket: str, _environment: tuple[tuple[str, str], ...]) -> "ObjectStore":
    server = _server(protocol)
    if protocol == "s3" and server is not None and not server.startswith(("http://", "https://")):
        raise RemoteError(  # obstore would panic
            errno.EINVAL, f"AWS_ENDPOINT_URL={redacted(server)} must be a URL that begins with https:// or http://"
        )
    client: ClientConfig = {
        "timeout": timedelta(seconds=REQUEST_SECONDS),
        "allow_http": server is not None and server.startswith("http://"),
    }
    if certificates := os.environ.get("AWS_CA_BUNDLE"):
        try:
            client["root_certificate"] = Path(certificates).read_bytes()
        except OSError as error:
            raise RemoteError(errno.EINVAL, f"AWS_CA_BUNDLE={certificates}: {error.strerror}") from None
    options = {"endpoint": server} if protocol == "s3" and server is not None else {}
    return STORES[protocol](bucket, client_options=client, retry_config=RETRIES, **options)
