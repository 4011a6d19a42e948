"""Open source files: Parquet, and others, which may be compressed, also as a zip archive with one file in it.

A file that is broken is told from one that cannot be reached at the moment.
"""

import bz2
import gzip
import io
import lzma
import re
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from fineweb_mask.models.columns import ColumnTypeError
from fineweb_mask.tasks.storage.remote.errors import is_transient
from fineweb_mask.tasks.storage.remote.filesystem import RemoteFile, is_local, open_filesystem, open_source

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


class BrokenFileError(ValueError):
    """A file is damaged, cut off, or not what its name says."""


BROKEN_FILE_ERRORS = (pa.ArrowException, BrokenFileError, UnicodeError, ColumnTypeError)
BUFFER_BYTES = 2**16
"""Bytes that are unpacked at a time."""


UNPACKING_ERRORS = (EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, zstd.ZstdError, gzip.BadGzipFile)
REMEDIES = {
    "too much memory": "its window is above 2 GiB; compress it again with zstd --long=31 or less",
    "Dictionary mismatch": "it needs a dictionary; compress it again without one",
}
"""What to do about a file of zstd that cannot be read, by what its errors say."""


def _zstd(stream: IO[bytes]) -> zstd.ZstdFile:
    """Return a reader of zstd with windows of up to 2 GiB, which take as much memory while the file is read."""
    return zstd.ZstdFile(stream, options={zstd.DecompressionParameter.window_log_max: 31})


def _zip(stream: IO[bytes]) -> IO[bytes]:
    archive = zipfile.ZipFile(stream)
    names = [name for name in archive.namelist() if not name.endswith("/") and not name.startswith("__MACOSX/")]
    if len(names) != 1:
        raise BrokenFileError(f"the archive holds {len(names):,} files, it may hold one: unpack it")
    try:
        return archive.open(names[0])
    except (RuntimeError, NotImplementedError) as error:  # it is encrypted, or of another method
        raise BrokenFileError(f"the archive cannot be opened: {error}: unpack it") from error


OPENERS: dict[str, Callable[[Any], Any]] = {
    ".gz": lambda stream: gzip.GzipFile(fileobj=stream),
    ".bz2": bz2.BZ2File,
    ".xz": lzma.LZMAFile,
    ".zst": _zstd,
    ".lz4": lambda stream: pa.CompressedInputStream(stream, "lz4"),
    ".zip": _zip,
}
PACKED = {**{ending: ending for ending in OPENERS}, ".gzip": ".gz", ".lzma": ".xz", ".zstd": ".zst"}
"""Endings of the names of compressed files, each with its key in `OPENERS`."""
FIRST_BYTES = {
    rb"\x1f\x8b": ".gz",
    rb"BZh[1-9]": ".bz2",
    rb"\xfd7zXZ\x00|\]\x00\x00": ".xz",
    rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18": ".zst",  # or a frame that is skipped
    rb"\x04\x22\x4d\x18": ".lz4",
    rb"PK\x03\x04": ".zip",
}
PLAIN = re.compile(rb"[\t\n\r -~\xef]")
"""A first byte of text; servers and tools unpack files and leave their names as they are."""


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
            raise _explained(error) from error
        buffer[: len(found)] = found
        return len(found)


@contextmanager
def open_unpacked(url: str, name: str) -> Iterator[IO[bytes]]:
    """Open a file and unpack it as its first bytes say, or else the ending of its name.

    Raises
    ------
    BrokenFileError
        Here or while it is read in the block: if it cannot be unpacked.
    """
    with open_source(url) as stream:
        first = stream.peek(8)
        kind = next((kind for pattern, kind in FIRST_BYTES.items() if re.match(pattern, first)), None)
        if kind is None and not PLAIN.match(first):
            kind = next((kind for ending, kind in PACKED.items() if name.lower().endswith(ending)), None)
        if kind is None:
            yield stream
            return
        try:
            unpacked = OPENERS[kind](stream)
        except UNPACKING_ERRORS as error:
            raise _explained(error) from error
        with unpacked:
            yield io.BufferedReader(_Unpacked(unpacked), BUFFER_BYTES)


def _explained(error: Exception) -> BrokenFileError:
    remedy = next((remedy for words, remedy in REMEDIES.items() if words in str(error)), "it is damaged or cut off")
    return BrokenFileError(f"{error}: {remedy}")


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
