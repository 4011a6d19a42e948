"""A folder at a URL, read and written with retries.

Promises: a listing is never taken from a cache. An upload is whole or not to be seen.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from email.utils import parsedate_to_datetime
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.tasks.storage.errors import answer_of, is_missing
from fineweb_mask.tasks.storage.filesystem import TRANSFER_BYTES, TRANSFERS_AT_ONCE, Stored, open_filesystem, stored
from fineweb_mask.tasks.storage.remote_file import RemoteFile
from fineweb_mask.tasks.storage.retries import attempt, attempt_briefly

_log = logging.getLogger(__name__)


class Tagged(NamedTuple):
    """A small file of a store with conditional writes."""

    content: bytes
    tag: str
    age: float  # seconds since it was written, by the clock of the store


class Store:
    """A folder at a URL that can be written to; files are named relative to it, with "/".

    Parameters
    ----------
    url
        The folder.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._filesystem, self._root = open_filesystem(self.url)
        self._is_s3 = "s3" in self._filesystem.protocol

    def url_of(self, name: str) -> str:
        """Return the URL of a file."""
        return f"{self.url}/{name}"

    def listed(self, folder: str = "") -> dict[str, Stored]:
        """Return all files below a folder, by name; none where there is no such folder.

        Raises
        ------
        RemoteError
            If the bucket is not there or may not be read.
        """
        return attempt(self.url, self._listed, folder)

    def _listed(self, folder: str) -> dict[str, Stored]:
        self._filesystem.invalidate_cache()
        try:
            found: dict[str, dict[str, Any]] = self._filesystem.find(f"{self._root}/{folder}".rstrip("/"), detail=True)
        except FileNotFoundError:
            if self._is_s3:  # no such bucket: an empty folder is an empty listing
                raise
            return {}
        prefix = f"{self._root.rstrip('/')}/"
        names = {path.removeprefix(prefix): info for path, info in found.items() if info["type"] == "file"}
        return {name: stored(info, self.url_of(name)) for name, info in names.items() if is_inside(name)}

    def check(self) -> None:
        """Raise `RemoteError` if the bucket is not there or may not be listed."""
        self.listed(".run.json")

    def info(self, name: str) -> Stored | None:
        """Return a file's size and version, or None if it is not there."""
        return attempt(self.url_of(name), self._info, name)

    def _info(self, name: str) -> Stored | None:
        self._filesystem.invalidate_cache()
        try:
            return stored(self._filesystem.info(self._path(name)), self.url_of(name))
        except FileNotFoundError as error:
            if not is_missing(error):
                raise
            return None

    def open(self, name: str, expected: Stored | None = None) -> RemoteFile:
        """Open a file for reading."""
        return RemoteFile(self.url_of(name), expected)

    def read(self, name: str) -> bytes:
        """Return a small file's content."""
        with self.open(name) as file:
            return file.read()

    def download(self, name: str, target: Path) -> Stored:
        """Copy a file to this machine, whole and of one version."""
        return attempt(self.url_of(name), self._download, name, target)

    def _download(self, name: str, target: Path) -> Stored:
        raise_if_stopped()
        before = stored(self._filesystem.info(self._path(name)), self.url_of(name))
        self._filesystem.get_file(self._path(name), str(target))
        after = stored(self._filesystem.info(self._path(name)), self.url_of(name))
        if before != after or target.stat().st_size != after.bytes:
            raise ConnectionError(f"{name} was changed or cut short while it was copied")
        return after

    def upload(self, source: Path, name: str) -> Stored:
        """Copy a file to the store in one step: others see the file that was there before, or the whole new one."""
        tries = count()
        found = attempt(self.url_of(name), self._upload, source, name, tries)
        if next(tries) > 1:  # one that failed may have left parts, for the server then failed at other requests, too
            attempt(self.url, self._abort_unfinished, name)
        return found

    def _upload(self, source: Path, name: str, tries: Iterator[int]) -> Stored:
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
            raise ConnectionError(f"{name} is not there as it was sent")
        return found

    @property
    def has_conditions(self) -> bool:
        """Whether files can be written on condition that nobody else has written them."""
        return self._is_s3

    def write_if(self, name: str, content: bytes, tag: str | None) -> str | None:
        """Write a small file if the one that is there has a tag, None being no file; return the tag it has then.

        Returns None where the condition does not hold: another has written it, or this call has and the answer was
        lost.
        """
        return attempt(self.url, self._write_if, name, content, tag)

    def _write_if(self, name: str, content: bytes, tag: str | None) -> str | None:
        bucket, key, _ = self._filesystem.split_path(self._path(name))
        condition = {"IfNoneMatch": "*"} if tag is None else {"IfMatch": tag}
        try:
            written = self._filesystem.call_s3("put_object", Bucket=bucket, Key=key, Body=content, **condition)
        except OSError as error:
            status, _ = answer_of(error) or (0, "")
            if status == 412 or (tag is not None and status == 404):
                return None
            raise
        return str(written["ETag"])

    def tagged(self, name: str) -> Tagged | None:
        """Return a small file with its tag, or None if it is not there."""
        return attempt(self.url, self._tagged, name)

    def _tagged(self, name: str) -> Tagged | None:
        bucket, key, _ = self._filesystem.split_path(self._path(name))
        try:
            head = self._filesystem.call_s3("head_object", Bucket=bucket, Key=key)
            content = self._filesystem.cat_file(self._path(name))
        except FileNotFoundError:
            return None
        now = parsedate_to_datetime(head["ResponseMetadata"]["HTTPHeaders"]["date"])
        return Tagged(content, head["ETag"], (now - head["LastModified"]).total_seconds())

    def give_up(self, name: str, is_own: Callable[[bytes], bool]) -> None:
        """Delete a small file if it is one's own; a server that does not answer is hardly waited for."""

        def delete_own() -> None:
            found = self._tagged(name)
            if found is not None and is_own(found.content):
                self._delete(name)

        attempt_briefly(self.url_of(name), delete_own)

    def delete(self, names: Iterable[str]) -> None:
        """Remove files; those that are not there are no error."""
        for name in names:
            attempt(self.url_of(name), self._delete, name)

    def _delete(self, name: str) -> None:
        try:
            self._filesystem.rm_file(self._path(name))
        except FileNotFoundError as error:
            if not is_missing(error):
                raise

    def abort_unfinished(self) -> None:
        """Remove the parts of uploads that were never ended, such as those of a run that was killed."""
        attempt(self.url, self._abort_unfinished, "")

    def _abort_quietly(self, name: str) -> None:
        """Remove the parts of an upload; where the server does not answer, the next run does."""
        try:
            self._abort_unfinished(name)
        except Exception as error:  # noqa: BLE001 - the upload's own error is the one to tell
            _log.debug("unfinished parts were not removed: %s", type(error).__name__)

    def _abort_unfinished(self, name: str) -> None:
        if not self._is_s3:
            return
        bucket, key, _ = self._filesystem.split_path(self._path(name) if name else f"{self._root}/")
        try:
            for upload in self._unfinished(bucket, key):
                if not name or upload["Key"] == key:
                    self._filesystem.call_s3(
                        "abort_multipart_upload", Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"]
                    )
        except (PermissionError, NotImplementedError):
            _log.debug("this store does not list unfinished uploads")

    def _unfinished(self, bucket: str, prefix: str) -> Iterator[dict[str, Any]]:
        place: dict[str, str] = {}
        while True:
            answer = self._filesystem.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=prefix, **place)
            yield from answer.get("Uploads", [])
            if not answer.get("IsTruncated"):
                return
            place = {"KeyMarker": answer["NextKeyMarker"], "UploadIdMarker": answer["NextUploadIdMarker"]}

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"


def is_inside(name: str) -> bool:
    """Return whether a name from a listing stays below its folder; whoever may write there chose it."""
    return not {"", ".", ".."} & set(name.split("/"))
