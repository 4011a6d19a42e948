"""Read and write a folder of an object store, with retries.

Guarantees: listings are never cached; a write is atomic, so that readers see the old object or the complete new one.
obstore deletes the parts of a multipart upload that fails. Those of a killed process stay: a lifecycle rule of the
bucket deletes them.
"""

import errno
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from obstore.exceptions import AlreadyExistsError, GenericError, PreconditionError

from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.models.urls import is_writable_url
from fineweb_mask.tasks.storage.remote.buckets import open_bucket
from fineweb_mask.tasks.storage.remote.errors import ChangedError, RemoteError, is_missing, redacted, response_of
from fineweb_mask.tasks.storage.remote.filesystem import FileInfo, RemoteFile, file_info, open_filesystem
from fineweb_mask.tasks.storage.remote.retries import attempt

if TYPE_CHECKING:
    from obstore import ObjectMeta, PutResult, UpdateVersion

TRANSFER_BYTES = 16 * 2**20
"""Bytes of one request of a download or of a multipart upload."""
TRANSFERS_AT_ONCE = 4


class Tagged(NamedTuple):
    """Content and version of a small object, for conditional writes."""

    content: bytes
    tag: "UpdateVersion"
    written: datetime  # by the store's clock


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
        self._bucket = open_bucket(self.url)
        self._files, self._root = open_filesystem(self.url)  # its paths are bucket and key

    def url_of(self, name: str) -> str:
        """Return the URL of a file."""
        return f"{self.url}/{name}"

    def list_files(self, folder: str = "") -> dict[str, FileInfo]:
        """Return all files below a folder by name, or the file of that name; empty if neither exists.

        Raises
        ------
        RemoteError
            If the bucket does not exist or may not be read, or holds an object whose name has an empty part, "." or
            "..", which cannot be a path.
        """
        found = attempt(self.url, lambda: self._files.find(self._path(folder), detail=True))
        return {name.removeprefix(f"{self._root}/"): file_info(info, name) for name, info in found.items()}

    def check_conditions(self, name: str) -> None:
        """Check that the store does not overwrite an object if a condition fails; `name` is a small one that exists.

        Raises
        ------
        RemoteError
            If the store ignores the conditions; two runs could not exclude each other there.
        """
        before = self.read_tagged(name)
        self.write_if_unchanged(name, b"created again", None)
        self.write_if_unchanged(name, b"another version", {"e_tag": f'"{"0" * 32}"', "version": "1"})
        after = self.read_tagged(name)
        if before is not None and after is not None and after.content in {b"created again", b"another version"}:
            self.delete([name])
            raise self._without_conditions()

    def _without_conditions(self) -> RemoteError:
        return RemoteError(
            errno.ENOTSUP,
            f"{redacted(self.url)}: this store ignores the conditions of a write (If-None-Match, If-Match), so "
            "that two runs could destroy each other's files: choose a store that has them (Amazon S3, MinIO, R2, "
            "SeaweedFS, Google Cloud Storage, Azure), or a folder on this machine",
        )

    def now(self) -> datetime:
        """Return the time by the store's clock, at which it writes a small object."""
        name = f".clock-{uuid.uuid4().hex}"
        self.write_if_unchanged(name, b"", None)
        found = self.read_tagged(name)
        self.delete([name])
        return datetime.min.replace(tzinfo=UTC) if found is None else found.written

    def info(self, name: str) -> FileInfo | None:
        """Return a file's size and version, or None if it does not exist."""
        return attempt(self.url_of(name), self._info, name)

    def _info(self, name: str) -> FileInfo | None:
        found = self._files.head(self._path(name))
        return None if found is None else file_info(found, self.url_of(name))

    def download(self, name: str, target: Path) -> FileInfo:
        """Download one version of a file to `target`; a request that fails is repeated, not the whole download."""
        return attempt(self.url_of(name), self._download, name, target)

    def _download(self, name: str, target: Path) -> FileInfo:
        try:
            with RemoteFile(self.url_of(name)) as source, target.open("wb") as file:
                while part := source.read(TRANSFER_BYTES):
                    file.write(part)
                return source.version
        except ChangedError as error:
            raise ConnectionError(f"{name} changed while it was downloaded") from error

    def upload(self, source: Path, name: str) -> FileInfo:
        """Upload a file atomically: readers see the old file or the complete new one."""
        return attempt(self.url_of(name), self._upload, source, name)

    def _upload(self, source: Path, name: str) -> FileInfo:
        raise_if_stopped()
        self._bucket.put(
            self._key(name),
            source,
            use_multipart=source.stat().st_size > TRANSFER_BYTES,
            chunk_size=TRANSFER_BYTES,
            max_concurrency=TRANSFERS_AT_ONCE,
        )
        found = self._info(name)
        if found is None or found.bytes != source.stat().st_size:
            raise ConnectionError(f"{name} does not exist as it was uploaded")
        return found

    def write_if_unchanged(self, name: str, content: bytes, tag: "UpdateVersion | None") -> "UpdateVersion | None":
        """Write a small file if its version is still `tag` (None: if it does not exist), and return its new version.

        Returns None if the condition fails: another process wrote the file, or this call did and the response was lost.
        """
        return attempt(self.url, self._write_if_unchanged, name, content, tag)

    def _write_if_unchanged(self, name: str, content: bytes, tag: "UpdateVersion | None") -> "UpdateVersion | None":
        try:
            written = self._bucket.put(self._key(name), content, mode="create" if tag is None else tag)
        except (AlreadyExistsError, PreconditionError):
            return None
        except GenericError as error:
            if (response_of(error) or (0, ""))[0] != 501:  # not implemented
                raise
            raise self._without_conditions() from None
        return _tag_of(written)

    def read_tagged(self, name: str) -> Tagged | None:
        """Return a small file with its version, or None if it does not exist."""
        return attempt(self.url, self._read_tagged, name)

    def _read_tagged(self, name: str) -> Tagged | None:
        try:
            found = self._bucket.get(self._key(name))
            content = bytes(found.bytes())
        except FileNotFoundError as error:
            if not is_missing(error) or (response_of(error) or (0, ""))[1] == "NoSuchBucket":
                raise
            return None
        meta = found.meta
        return Tagged(content, _tag_of(meta), meta["last_modified"])

    def delete(self, names: Iterable[str]) -> None:
        """Delete files; missing files are not an error."""
        if names := list(names):
            attempt(self.url, self._delete, names)

    def _delete(self, names: list[str]) -> None:
        try:
            self._bucket.delete([self._key(name) for name in names])
        except FileNotFoundError as error:
            if not is_missing(error):
                raise
            for name in names if len(names) > 1 else ():  # Google's and Azure's stores stop at a missing one
                self._delete([name])

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}".rstrip("/")

    def _key(self, name: str) -> str:
        return self._path(name).partition("/")[2]


def _tag_of(meta: "ObjectMeta | PutResult") -> "UpdateVersion":
    """Return what names the version of an object: its ETag, at Google its generation."""
    tag: UpdateVersion = {}
    if meta["e_tag"] is not None:
        tag["e_tag"] = meta["e_tag"]
    if meta["version"] is not None:
        tag["version"] = meta["version"]
    return tag
