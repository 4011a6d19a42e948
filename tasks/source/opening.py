"""Open source files: Parquet, and others, which may be compressed.

A file that is broken is told from one that cannot be reached at the moment.
"""

import bz2
import gzip
import io
import lzma
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from fineweb_mask.tasks.storage.remote.errors import is_transient
from fineweb_mask.tasks.storage.remote.filesystem import RemoteFile, is_local, open_filesystem, open_source

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


class BrokenFileError(ValueError):
    """A file is damaged, cut off, or not what its name says."""


BROKEN_FILE_ERRORS = (pa.ArrowException, BrokenFileError, UnicodeError)
BUFFER_BYTES = 2**16
"""Bytes that are unpacked at a time."""


UNPACKING_ERRORS = (EOFError, zlib.error, lzma.LZMAError, zstd.ZstdError, gzip.BadGzipFile)
REMEDIES = {
    "too much memory": "its window is above 2 GiB; compress it again with zstd --long=31 or less",
    "Dictionary mismatch": "it needs a dictionary; compress it again without one",
}
"""What to do about a file of zstd that cannot be read, by what its errors say."""


def _zstd(stream: IO[bytes]) -> zstd.ZstdFile:
    """Return a reader of zstd with windows of up to 2 GiB, which take as much memory while the file is read."""
    return zstd.ZstdFile(stream, options={zstd.DecompressionParameter.window_log_max: 31})


OPENERS: dict[bytes, Callable[[Any], Any]] = {
    rb"\x1f\x8b": lambda stream: gzip.GzipFile(fileobj=stream),
    rb"BZh[1-9]": bz2.BZ2File,
    rb"\xfd7zXZ\x00": lzma.LZMAFile,
    rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18": _zstd,  # or a frame that is skipped
}
"""What opens a compressed file, by its first bytes: tools unpack files and leave their names as they are."""
PACKED = (".gz", ".bz2", ".xz", ".zst", ".zstd")
"""Endings of the names of compressed files."""


class _Unpacked(io.RawIOBase):
    """An unpacked stream whose errors say what to do; a reader might take an EOFError for the end of the file."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401
        try:
            found = self._stream.read(len(buffer))
        except UNPACKING_ERRORS as error:
            remedy = next((what for words, what in REMEDIES.items() if words in str(error)), "it is damaged or cut off")
            raise BrokenFileError(f"{error}: {remedy}") from error
        buffer[: len(found)] = found
        return len(found)


@contextmanager
def open_unpacked(url: str) -> Iterator[IO[bytes]]:
    """Open a file, and unpack it if its first bytes say that it is compressed.

    Raises
    ------
    BrokenFileError
        While it is read in the block: if it cannot be unpacked.
    """
    with open_source(url) as stream:
        first = stream.peek(8)
        unpack = next((unpack for pattern, unpack in OPENERS.items() if re.match(pattern, first)), None)
        if unpack is None:
            yield stream
            return
        with unpack(stream) as unpacked:
            yield io.BufferedReader(_Unpacked(unpacked), BUFFER_BYTES)


def open_parquet_source(url: str) -> pq.ParquetFile:
    """Open a Parquet file of the source."""
    filesystem, path = open_filesystem(url)
    file = pa.OSFile(path) if is_local(filesystem) else RemoteFile(url)
    return pq.ParquetFile(file, page_checksum_verification=True)


@contextmanager
def broken_files(explained: Callable[[Exception], Exception] | None = None) -> Iterator[None]:
    """End the block where a file cannot be read, or raise the error `explained`; what may pass is raised as it is."""
    try:
        yield
    except (*BROKEN_FILE_ERRORS, OSError) as error:
        if is_transient(error):
            raise
        if explained is not None:
            raise explained(error) from error
