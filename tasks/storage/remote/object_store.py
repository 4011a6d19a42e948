"""Read and write a folder of an object store.

Guarantees: listings are never cached; a write is atomic, so that readers see the old object or the complete new one.
obstore deletes the parts of a multipart upload that fails. Those of a killed process stay: a lifecycle rule of the
bucket deletes them.
"""

import errno
import shutil
import uuid
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.models.urls import is_writable_url
from fineweb_mask.tasks.storage.remote.errors import MissingError, RemoteError, redacted
from fineweb_mask.tasks.storage.remote.filesystem import RemoteFile, objects_below, open_bucket, split_url
from fineweb_mask.tasks.storage.remote.retries import attempt

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
        """Return the bytes of all files below a folder by name; empty if it does not exist.

        Raises
        ------
        RemoteError
            If the bucket does not exist or may not be read, or holds an object whose name has an empty part, "." or
            "..", which cannot be a path.
        """
        found = attempt(self.url, objects_below, self._bucket, self._key(folder))
        return {one["path"].removeprefix(f"{self._root}/"): one["size"] for one in found}

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
