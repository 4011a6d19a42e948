"""Read a file at a URL by ranges, with retries, always from one version of the file."""

import errno
import io
import os
from typing import Any

from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.tasks.storage.remote.errors import ChangedError, RemoteError, redacted
from fineweb_mask.tasks.storage.remote.filesystem import (
    BucketFiles,
    FileInfo,
    file_info,
    invalidate_listing,
    is_local,
    open_filesystem,
)
from fineweb_mask.tasks.storage.remote.retries import attempt

READ_AHEAD_BYTES = 4 * 2**20


class RemoteFile(io.RawIOBase):
    """A binary file at a URL, read by ranges; a failed range is requested again from the same version of the file.

    Parameters
    ----------
    url
        The file.
    expected
        The version to read; None reads the current one.

    Attributes
    ----------
    version
        Size and version of the file that is read.

    Raises
    ------
    ChangedError
        Here or while reading: if the file is no longer the expected version.
    RemoteError
        If it cannot be read.
    """

    def __init__(self, url: str, expected: FileInfo | None = None) -> None:
        self._url = url
        self._filesystem, self._path = open_filesystem(url)
        self._file: Any = None
        self._position = 0
        self.version = attempt(url, self._open, expected)

    def check(self) -> None:
        """Raise `ChangedError` if the file has another version now."""
        self._compare(attempt(self._url, self._current), self.version)

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position of the next read, in bytes."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.version.bytes}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401
        """Read into the buffer up to its end or the end of the file, and return the number of bytes."""
        with memoryview(buffer).cast("B") as view:
            size = min(len(view), self.version.bytes - self._position)
            if size <= 0:
                return 0
            view[:size] = attempt(self._url, self._range, self._position, size)
        self._position += size
        return size

    def close(self) -> None:
        """Close the connection."""
        self._disconnect()
        super().close()

    def _current(self) -> FileInfo:
        invalidate_listing(self._filesystem, self._path)  # HfFileSystem ignores `use_listings_cache`
        return file_info(self._filesystem.info(self._path), self._url)

    def _compare(self, found: FileInfo, expected: FileInfo) -> None:
        if found != expected:
            raise ChangedError(errno.EINVAL, f"{redacted(self._url)} changed while it was read: run again")

    def _open(self, expected: FileInfo | None) -> FileInfo:
        if isinstance(self._filesystem, BucketFiles):  # each range is asked of one version
            return expected or self._current()
        found = self._current()
        self._compare(found, expected or found)
        file = self._filesystem.open(self._path, "rb", cache_type="none")
        if not file.seekable() or getattr(file, "size", None) is None:
            file.close()
            raise self._no_ranges()
        self._file = file
        return found

    def _no_ranges(self) -> RemoteError:
        return RemoteError(
            errno.ESPIPE, f"{redacted(self._url)}: the server does not serve parts of files: download it first"
        )

    def _range(self, start: int, size: int) -> bytes:
        raise_if_stopped()
        found: bytes
        try:
            if isinstance(self._filesystem, BucketFiles):
                found = self._filesystem.read_range(self._path, start, start + size, self.version.version)
            else:
                if self._file is None:
                    self._open(self.version)
                self._file.seek(start)
                found = self._file.read(size)
        except ValueError as error:  # fsspec's HTTP file, if the server ignores the range and sends the whole file
            self._disconnect()
            raise self._no_ranges() from error
        except BaseException:
            self._disconnect()
            raise
        if len(found) != size:
            self._disconnect()
            raise self._no_ranges() if len(found) > size else ConnectionError(f"received {len(found)} of {size} bytes")
        return found

    def _disconnect(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()


def open_source(url: str) -> io.BufferedReader:
    """Open a local file, or a `RemoteFile` with read-ahead for a URL."""
    filesystem, path = open_filesystem(url)
    if is_local(filesystem):
        return open(path, "rb")  # noqa: PTH123
    return io.BufferedReader(RemoteFile(url), READ_AHEAD_BYTES)
