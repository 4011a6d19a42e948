"""Read and write a folder at a URL, with retries.

Guarantees: listings bypass the cache; uploads are atomic.
"""

import errno
import logging
from collections.abc import Callable, Iterable, Iterator
from email.utils import parsedate_to_datetime
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.tasks.storage.errors import RemoteError, is_missing, response_of
from fineweb_mask.tasks.storage.filesystem import (
    TRANSFER_BYTES,
    TRANSFERS_AT_ONCE,
    FileInfo,
    file_info,
    open_filesystem,
)
from fineweb_mask.tasks.storage.remote_file import RemoteFile
from fineweb_mask.tasks.storage.retries import attempt

_log = logging.getLogger(__name__)


class Tagged(NamedTuple):
    """Content and ETag of a small file, for conditional writes."""

    content: bytes
    tag: str
    age: float  # seconds since the last write, by the store's clock


class Store:
    """A writable folder at a URL; file names are relative to it, with "/"."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._filesystem, self._root = open_filesystem(self.url)
        self._is_s3 = "s3" in self._filesystem.protocol

    def url_of(self, name: str) -> str:
        """Return the URL of a file."""
        return f"{self.url}/{name}"

    def list_files(self, folder: str = "") -> dict[str, FileInfo]:
        """Return all files below a folder by name; empty if the folder does not exist.

        Raises
        ------
        RemoteError
            If the bucket does not exist or may not be read.
        """
        return attempt(self.url, self._list_files, folder)

    def _list_files(self, folder: str) -> dict[str, FileInfo]:
        self._filesystem.invalidate_cache()
        try:
            found: dict[str, dict[str, Any]] = self._filesystem.find(f"{self._root}/{folder}".rstrip("/"), detail=True)
        except FileNotFoundError:
            if self._is_s3:  # a missing bucket; a missing folder is an empty listing
                raise
            return {}
        prefix = f"{self._root.rstrip('/')}/"
        names = {path.removeprefix(prefix): info for path, info in found.items() if info["type"] == "file"}
        return {name: file_info(info, self.url_of(name)) for name, info in names.items() if is_inside(name)}

    def check(self) -> None:
        """Raise `RemoteError` if the bucket does not exist or may not be listed."""
        self.list_files(".run.json")

    def info(self, name: str) -> FileInfo | None:
        """Return a file's size and version, or None if it does not exist."""
        return attempt(self.url_of(name), self._info, name)

    def _info(self, name: str) -> FileInfo | None:
        self._filesystem.invalidate_cache()
        try:
            return file_info(self._filesystem.info(self._path(name)), self.url_of(name))
        except FileNotFoundError as error:
            if not is_missing(error):
                raise
            return None

    def open(self, name: str, expected: FileInfo | None = None) -> RemoteFile:
        """Open a file for reading; `expected` is the version to read, None the current one."""
        return RemoteFile(self.url_of(name), expected)

    def read(self, name: str) -> bytes:
        """Return a small file's content."""
        with self.open(name) as file:
            return file.read()

    def download(self, name: str, target: Path) -> FileInfo:
        """Download one version of a file to `target`."""
        return attempt(self.url_of(name), self._download, name, target)

    def _download(self, name: str, target: Path) -> FileInfo:
        raise_if_stopped()
        before = file_info(self._filesystem.info(self._path(name)), self.url_of(name))
        self._filesystem.get_file(self._path(name), str(target))
        after = file_info(self._filesystem.info(self._path(name)), self.url_of(name))
        if before != after or target.stat().st_size != after.bytes:
            raise ConnectionError(f"{name} changed or was cut short while it was downloaded")
        return after

    def upload(self, source: Path, name: str) -> FileInfo:
        """Upload a file atomically: readers see the old file or the complete new one."""
        tries = count()
        found = attempt(self.url_of(name), self._upload, source, name, tries)
        if next(tries) > 1:  # a failed try may have left parts of a multipart upload
            attempt(self.url, self._abort_unfinished_uploads, name)
        return found

    def _upload(self, source: Path, name: str, tries: Iterator[int]) -> FileInfo:
        raise_if_stopped()
        next(tries)
        size = source.stat().st_size
        parts = {"chunksize": TRANSFER_BYTES, "max_concurrency": TRANSFERS_AT_ONCE} if self._is_s3 else {}
        try:
            self._filesystem.put_file(str(source), self._path(name), **parts)
        except BaseException:
            self._abort_quietly(name)
            raise
        found = self._info(name)
        if found is None or found.bytes != size:
            raise ConnectionError(f"{name} does not exist as it was uploaded")
        return found

    @property
    def has_conditional_writes(self) -> bool:
        """Whether `write_if_unchanged` and `read_tagged` are supported."""
        return self._is_s3

    def write_if_unchanged(self, name: str, content: bytes, tag: str | None) -> str | None:
        """Write a small file if its ETag is still `tag` (None: if it does not exist), and return its new ETag.

        Returns None if the condition fails: another process wrote the file, or this call did and the response was lost.
        """
        return attempt(self.url, self._write_if_unchanged, name, content, tag)

    def _write_if_unchanged(self, name: str, content: bytes, tag: str | None) -> str | None:
        bucket, key, _ = self._filesystem.split_path(self._path(name))
        condition = {"IfNoneMatch": "*"} if tag is None else {"IfMatch": tag}
        try:
            written = self._filesystem.call_s3("put_object", Bucket=bucket, Key=key, Body=content, **condition)
        except OSError as error:
            status, _ = response_of(error) or (0, "")
            if status == 412 or (tag is not None and status == 404):
                return None
            raise
        return str(written["ETag"])

    def read_tagged(self, name: str) -> Tagged | None:
        """Return a small file with its ETag, or None if it does not exist."""
        return attempt(self.url, self._read_tagged, name)

    def _read_tagged(self, name: str) -> Tagged | None:
        bucket, key, _ = self._filesystem.split_path(self._path(name))
        try:
            head = self._filesystem.call_s3("head_object", Bucket=bucket, Key=key)
            content = self._filesystem.cat_file(self._path(name))
        except FileNotFoundError:
            return None
        now = parsedate_to_datetime(head["ResponseMetadata"]["HTTPHeaders"]["date"])
        return Tagged(content, head["ETag"], (now - head["LastModified"]).total_seconds())

    def delete_if(self, name: str, is_own: Callable[[bytes], bool]) -> None:
        """Delete the object if `is_own(content)`, retrying for a few seconds only."""

        def delete_own() -> None:
            found = self._read_tagged(name)
            if found is not None and is_own(found.content):
                self._delete(name)

        attempt(self.url_of(name), delete_own, is_brief=True)

    def copy(self, name: str, target: str) -> FileInfo:
        """Copy a file within the store."""
        attempt(self.url_of(name), self._filesystem.cp_file, self._path(name), self._path(target))
        found = self.info(target)
        if found is None:
            raise RemoteError(errno.EIO, f"{self.url_of(target)} does not exist after it was copied")
        return found

    def delete(self, names: Iterable[str]) -> None:
        """Delete files; missing files are not an error."""
        for name in names:
            attempt(self.url_of(name), self._delete, name)

    def _delete(self, name: str) -> None:
        try:
            self._filesystem.rm_file(self._path(name))
        except FileNotFoundError as error:
            if not is_missing(error):
                raise

    def abort_unfinished_uploads(self) -> None:
        """Delete the parts of multipart uploads that never finished, such as those of a killed run."""
        attempt(self.url, self._abort_unfinished_uploads, "")

    def _abort_quietly(self, name: str) -> None:
        """Delete the parts of an upload; if that fails, the next run does it."""
        try:
            self._abort_unfinished_uploads(name)
        except Exception as error:  # noqa: BLE001 - do not hide the upload's own error
            _log.debug("unfinished uploads were not deleted: %s", type(error).__name__)

    def _abort_unfinished_uploads(self, name: str) -> None:
        if not self._is_s3:
            return
        bucket, key, _ = self._filesystem.split_path(self._path(name) if name else f"{self._root}/")
        try:
            for upload in self._unfinished_uploads(bucket, key):
                if not name or upload["Key"] == key:
                    self._filesystem.call_s3(
                        "abort_multipart_upload", Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"]
                    )
        except (PermissionError, NotImplementedError):
            _log.debug("this store does not list unfinished uploads")

    def _unfinished_uploads(self, bucket: str, prefix: str) -> Iterator[dict[str, Any]]:
        start: dict[str, str] = {}
        while True:
            page = self._filesystem.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=prefix, **start)
            yield from page.get("Uploads", [])
            if not page.get("IsTruncated"):
                return
            start = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"


def is_inside(name: str) -> bool:
    """Return whether a name from a listing stays below its folder; names are untrusted."""
    return not {"", ".", ".."} & set(name.split("/"))
