"""A file at a URL, read by ranges with retries; what is read is all of one version of the file."""

import errno
import io
import os
from typing import Any

from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.tasks.storage.errors import ChangedError, RemoteError, redacted
from fineweb_mask.tasks.storage.filesystem import Stored, is_local, look_anew, open_filesystem, stored
from fineweb_mask.tasks.storage.retries import attempt

READ_AHEAD_BYTES = 4 * 2**20


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
        raise_if_stopped()
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


def open_source(url: str) -> io.BufferedReader:
    """Open a local file, or one at a URL that is asked for again where reading it fails."""
    filesystem, path = open_filesystem(url)
    if is_local(filesystem):
        return open(path, "rb")  # noqa: PTH123
    return io.BufferedReader(RemoteFile(url), READ_AHEAD_BYTES)
