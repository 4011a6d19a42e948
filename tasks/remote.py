"""Files at a URL, through fsspec: opened with credentials from the environment, read and written with retries.

Promises: what a server refuses for a moment (throttling, timeouts, lost connections, 5xx) is tried again, with
exponential backoff and jitter, for `PATIENCE_SECONDS`; what it refuses for good fails at once and says what to do. A
listing is never taken from a cache. An upload is whole or not to be seen. No error and no log line of this module holds
a credential: the texts of other libraries pass through `redacted`.
"""

import errno
import io
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from email.utils import parsedate_to_datetime
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

import fsspec
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_delay, wait_random_exponential

from models.stopping import stop_if_requested
from models.urls import is_url, names_a_commit
from models.urls import redacted as without_secrets

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

PATIENCE_SECONDS = 300.0
"""For how long one operation is tried again: a server that is restarted is waited for."""

BRIEF_SECONDS = 5.0
"""For how long one is that only spares others a wait."""

LONGEST_WAIT_SECONDS = 15.0

TRANSFER_BYTES = 16 * 2**20
"""One part of an upload or download in parts; s3fs's own 50 MiB, ten at a time, would be half a gigabyte."""
TRANSFERS_AT_ONCE = 4

READ_AHEAD_BYTES = 4 * 2**20

TRANSIENT_ERRNO = frozenset(
    {
        errno.EIO,
        errno.EAGAIN,
        errno.EBUSY,
        errno.EINTR,
        errno.ENETUNREACH,
        errno.EHOSTUNREACH,
        errno.ESTALE,
        errno.ETIMEDOUT,
    }
)
LASTING = frozenset({"FileExpired", "OfflineModeIsEnabled", "UnsupportedProtocol"})
"""Errors, by name, that would pass for a lost connection or a busy file: of s3fs, huggingface_hub and httpx."""
TRANSIENT_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
TRANSIENT_CODES = frozenset(  # of S3, where the HTTP status alone does not tell
    {"RequestTimeout", "SlowDown", "Throttling", "OperationAborted", "ConditionalRequestConflict", "InternalError"}
)
LOST_CONNECTIONS = {  # by module; named, so that none of these libraries is imported to handle an error
    "aiohttp": frozenset({"ClientConnectionError", "ClientPayloadError"}),
    "botocore": frozenset({"ConnectionError", "HTTPClientError", "IncompleteReadError", "ResponseParserError"}),
    "httpx": frozenset({"TransportError"}),
    "httpx2": frozenset({"TransportError"}),
}
SECRET_VARIABLES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
)
CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE (and AWS_ENDPOINT_URL for a store other than "
    "Amazon's; FSSPEC_S3_ANON=true for a public bucket)",
    "hf": "HF_TOKEN (of an account that may read it; the hub answers the same where a name is misspelt, and the terms "
    "of a gated repository are accepted on its page)",
}

_log = logging.getLogger(__name__)


class RemoteError(OSError):
    """A URL cannot be read or written; trying again would not help."""

    def __str__(self) -> str:
        return str(self.strerror)


class UnansweredError(RemoteError, TimeoutError):
    """A server gave no good answer for as long as it was waited for; trying again later may help."""


class ChangedError(RemoteError):
    """A file at a URL is no longer the one that reading began with."""


class Stored(NamedTuple):
    """A file at a URL, as a listing tells it."""

    bytes: int
    version: str  # changes with the content


class Tagged(NamedTuple):
    """A small file of a store with conditional writes."""

    content: bytes
    tag: str
    age: float  # seconds since it was written, by the clock of the store


def is_transient(error: BaseException) -> bool:
    """Return whether trying again may help: timeouts, lost connections, input/output, server errors, GPU memory."""
    if isinstance(error, ChangedError) or type(error).__name__ in LASTING:
        return False
    if (answer := _answer(error)) is not None:
        status, code = answer
        return status in TRANSIENT_STATUS or code in TRANSIENT_CODES
    if isinstance(error, TimeoutError | ConnectionError) or _is_lost_connection(error):
        return True
    if isinstance(error, FileNotFoundError) and error.__cause__ is not None:
        return is_transient(error.__cause__)  # how fsspec tells that an HTTP server gave no answer
    if isinstance(error, OSError) and error.errno in TRANSIENT_ERRNO:
        return True
    # After the batches were made as small as can be: somebody else's memory may be free again.
    return type(error).__name__ == "OutOfMemoryError" and type(error).__module__.startswith("torch")


def is_missing(error: FileNotFoundError) -> bool:
    """Return whether a file is not there: fsspec raises the same error for an HTTP server that refuses or is gone."""
    answer = _answer(error)
    return not is_transient(error) and (answer is None or answer[0] in {404, 410})


def _answer(error: BaseException) -> tuple[int, str] | None:
    """Return the HTTP status and the store's own code that an error tells of, if a server answered at all."""
    for one in (error, error.__cause__):
        response = getattr(one, "response", None)
        if isinstance(response, dict):  # botocore's
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            return status, str(response.get("Error", {}).get("Code", ""))
        status = getattr(response, "status_code", getattr(one, "status", None))
        if isinstance(status, int):
            return status, ""
    return None


def _is_lost_connection(error: BaseException) -> bool:
    return any(
        kind.__name__ in LOST_CONNECTIONS.get(kind.__module__.partition(".")[0], ()) for kind in type(error).__mro__
    )


def redacted(text: str) -> str:
    """Return a text without what may be a credential: a URL's query and user, the values of secret variables."""
    for name in SECRET_VARIABLES:
        if value := os.environ.get(name):
            text = text.replace(value, "***")
    return without_secrets(text)


def attempt(
    url: str, work: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs
) -> Result:
    """Return what `work` returns, tried again while its errors are transient.

    Raises
    ------
    RemoteError
        If it fails for good; `errno` is ENOENT where nothing is there and EACCES where access is refused.
    UnansweredError
        If it failed for `PATIENCE_SECONDS`.
    """
    return _attempt(PATIENCE_SECONDS, url, lambda: work(*args, **kwargs))


def _attempt(patience: float, url: str, work: Callable[[], Result]) -> Result:
    retrying = Retrying(
        stop=stop_after_delay(patience),
        wait=wait_random_exponential(multiplier=0.25, max=LONGEST_WAIT_SECONDS),
        retry=retry_if_exception(is_transient),
        before_sleep=_tell,
        sleep=_sleep,
        reraise=True,
    )
    try:
        return retrying(work)
    except RemoteError:
        raise
    except Exception as error:
        if not _is_of_storage(error):
            raise
        explained = explain(url, error, patience)
    raise explained  # outside of the handler: the error's own text, which may hold a secret, is not chained


def _is_of_storage(error: BaseException) -> bool:
    foreign = type(error).__module__.partition(".")[0] in {*LOST_CONNECTIONS, "aiobotocore", "huggingface_hub", "s3fs"}
    return isinstance(error, OSError) or foreign or is_transient(error)


def explain(url: str, error: BaseException, patience: float) -> RemoteError:
    """Return an error that names the URL and the remedy, without the credentials that `error` may tell.

    Parameters
    ----------
    url
        What was to be read or written.
    error
        What came of it.
    patience
        Seconds for which it was tried.
    """
    place, text = redacted(url), redacted(" ".join(str(error).split()) or type(error).__name__)
    answer = _answer(error)
    status = 0 if answer is None else answer[0]
    if is_transient(error):
        return UnansweredError(
            errno.ETIMEDOUT,
            f"{place}: failed for {patience:.0f} s, at last with: {text}; see whether the server is up and run "
            "the same command again",
        )
    if isinstance(error, PermissionError) or status in {401, 403} or "Credentials" in type(error).__name__:
        variables = CREDENTIALS.get(url.partition("://")[0])
        remedy = f": set {variables} in the environment" if variables else ""
        return RemoteError(errno.EACCES, f"{place}: access is refused ({text}){remedy}")
    if isinstance(error, FileNotFoundError) or status == 404:
        remedy = f": look at its spelling, and at the {_holder(url)}'s" if is_url(url) else ""
        return RemoteError(errno.ENOENT, f"{place} is not there ({text}){remedy}")
    if type(error).__name__ == "FileExpired":
        return ChangedError(errno.EINVAL, f"{place} was changed while it was read")
    return RemoteError(getattr(error, "errno", None) or errno.EINVAL, f"{place}: {text}")


def _holder(url: str) -> str:
    return "repository" if url.startswith("hf://") else "bucket"


def _tell(state: RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome is not None else None
    name = "" if error is None else type(error).__name__
    _log.warning("remote storage: %s; attempt %d follows", name, state.attempt_number + 1)


def _sleep(seconds: float) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        stop_if_requested()
        time.sleep(min(left, 0.5))


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


class RemoteFile(io.RawIOBase):
    """A file at a URL, read by ranges; a range that fails is asked for again, of the same version of the file.

    Parameters
    ----------
    url
        The file.
    expected
        The version that is wanted; None takes the one that is there.

    Raises
    ------
    ChangedError
        Here or while reading: if the file is another one.
    RemoteError
        If it cannot be read.
    """

    def __init__(self, url: str, expected: Stored | None = None) -> None:
        self._url = url
        self._filesystem, self._path = open_filesystem(url)
        self._expected = expected
        self._file: Any = None
        self._position = 0
        attempt(url, self._open)

    @property
    def version(self) -> Stored:
        """The version that is read."""
        if self._expected is None:
            raise ValueError("the file was not opened")
        return self._expected

    def check(self) -> None:
        """Raise `ChangedError` if another version lies there now."""
        self._compare(attempt(self._url, self._stored))

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the place that is read next."""
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the place that is read next."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.version.bytes}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401
        """Fill the buffer, or what the file still has of it."""
        with memoryview(buffer).cast("B") as view:
            size = min(len(view), self.version.bytes - self._position)
            if size <= 0:
                return 0
            view[:size] = attempt(self._url, self._range, self._position, size)
        self._position += size
        return size

    def close(self) -> None:
        """Close it."""
        self._drop()
        super().close()

    def _stored(self) -> Stored:
        look_anew(self._filesystem, self._path)  # HfFileSystem keeps listings whatever `use_listings_cache` says
        return stored(self._filesystem.info(self._path), self._url)

    def _compare(self, found: Stored) -> None:
        if self._expected is not None and found != self._expected:
            raise ChangedError(errno.EINVAL, f"{redacted(self._url)} was changed while it was read: run again")

    def _open(self) -> None:
        found = self._stored()
        self._compare(found)
        self._expected = found
        file = self._filesystem.open(self._path, "rb", cache_type="none")
        if not file.seekable() or getattr(file, "size", None) is None:
            file.close()
            raise self._not_by_parts()
        self._file = file

    def _not_by_parts(self) -> RemoteError:
        return RemoteError(
            errno.ESPIPE, f"{redacted(self._url)}: the server does not serve parts of files: download it first"
        )

    def _range(self, start: int, size: int) -> bytes:
        stop_if_requested()
        try:
            if self._file is None:
                self._open()
            self._file.seek(start)
            found: bytes = self._file.read(size)
        except ValueError as error:  # fsspec's HTTP file, of a server that sends the whole file whatever is asked for
            self._drop()
            raise self._not_by_parts() from error
        except BaseException:
            self._drop()
            raise
        if len(found) > size:
            self._drop()
            raise self._not_by_parts()
        if len(found) < size:
            self._drop()
            raise ConnectionError(f"{len(found)} of {size} bytes came")
        return found

    def _drop(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()


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
        stop_if_requested()
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
        stop_if_requested()
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
            status, _ = _answer(error) or (0, "")
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

        _attempt(BRIEF_SECONDS, self.url_of(name), delete_own)

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
