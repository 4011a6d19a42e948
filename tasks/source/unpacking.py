"""Open compressed files: gzip, bzip2, xz, zstd, lz4, and zip with one file in it."""

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

from fineweb_mask.models.errors import DataError
from fineweb_mask.tasks.storage.remote.filesystem import open_source

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


class UnpackingError(DataError):
    """A compressed file is damaged, cut off, or compressed in a way that cannot be read."""


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
        raise UnpackingError(f"the archive holds {len(names):,} files, it may hold one: unpack it")
    try:
        return archive.open(names[0])
    except (RuntimeError, NotImplementedError) as error:  # it is encrypted, or of another method
        raise UnpackingError(f"the archive cannot be opened: {error}: unpack it") from error


OPENERS: dict[str, Callable[[Any], Any]] = {
    ".gz": lambda stream: gzip.GzipFile(fileobj=stream),
    ".bz2": bz2.BZ2File,
    ".xz": lzma.LZMAFile,
    ".zst": _zstd,
    ".lz4": lambda stream: io.BufferedReader(pa.CompressedInputStream(stream, "lz4")),
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


@contextmanager
def open_unpacked(url: str, name: str) -> Iterator[IO[bytes]]:
    """Open a file and unpack it as its first bytes say, or else the ending of its name.

    Raises
    ------
    UnpackingError
        Here or while it is read in the block: if it cannot be unpacked.
    """
    with open_source(url) as stream:
        first = stream.peek(8)
        kind = next((kind for pattern, kind in FIRST_BYTES.items() if re.match(pattern, first)), None)
        if kind is None and not PLAIN.match(first):
            kind = next((kind for ending, kind in PACKED.items() if name.lower().endswith(ending)), None)
        try:
            if kind is None:
                yield stream
            else:
                with OPENERS[kind](stream) as unpacked:
                    yield unpacked
        except UNPACKING_ERRORS as error:
            raise unpacking_error(error) from error


def unpacking_error(error: Exception) -> UnpackingError:
    """Return one of `UNPACKING_ERRORS` in our own words, with what to do about it."""
    remedy = next((remedy for words, remedy in REMEDIES.items() if words in str(error)), "it is damaged or cut off")
    return UnpackingError(f"{error}: {remedy}")
