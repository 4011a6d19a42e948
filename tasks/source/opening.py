"""Open source files: Parquet, and others, which may be compressed; read JSON Lines, and infer their types.

A file that is broken is told from one that cannot be reached at the moment.
"""

import bz2
import gzip
import io
import json
import lzma
import re
import sys
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import IO, Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from fineweb_mask.models.runtime.stopping import raise_if_stopped
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

Format = Literal["parquet", "jsonl", "warc"]
FORMATS: dict[str, Format] = {
    ".parquet": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".warc": "warc",
    ".wet": "warc",
}
ENDING = re.compile(
    f"({'|'.join(map(re.escape, FORMATS))})({'|'.join(map(re.escape, PACKED))})?\\Z", re.IGNORECASE | re.ASCII
)
LARGEST_DOCUMENT = 32 * 2**20
"""Most bytes of a line of JSON, of a page, or of a text of Parquet; a larger one is dropped."""
SKIPPED_BYTES = 2**20
"""Bytes of a line that is too long, read at a time."""

_JSON = json.JSONDecoder(parse_constant=lambda _: None)
"""Reads NaN, Infinity and -Infinity, which Python writes and JSON has not, as null."""

Record = dict[str, Any] | str  # an object, or the problem for which it could not be read


def ending_of(path: str) -> str:
    """Return the ending that tells a file's format and how it is compressed, or an empty text.

    >>> [ending_of(path) for path in ("a.b/c.JSONL.gz", "d.parquet", "e.csv.gz")]
    ['.JSONL.gz', '.parquet', '']
    """
    found = ENDING.search(path)
    return found[0] if found else ""


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


def jsonl_records(url: str) -> Iterator[Record]:
    """Yield the object of each line that is not blank; instead of one that cannot be read, its problem.

    Problems are `broken_row`, `too_large` and `invalid_utf8`. A file whose name ends in .json may also be one value of
    several lines, a list of objects or one object, which is read into memory.
    """
    may_be_one = ending_of(url).lower().split(".")[1:2] == ["json"]
    with open_unpacked(url) as lines:
        while line := lines.readline(LARGEST_DOCUMENT + 1):
            if len(line) > LARGEST_DOCUMENT and not line.endswith(b"\n") and not may_be_one:
                while (rest := lines.readline(SKIPPED_BYTES)) and not rest.endswith(b"\n"):
                    raise_if_stopped()
                yield "too_large"
            elif line.strip():
                record = _parse(line)
                if may_be_one and not isinstance(record, dict):
                    yield from _values(line + lines.read())
                    return
                may_be_one = False
                yield record


def _values(content: bytes) -> list[Record]:
    """Return the objects of a list, or the only one."""
    try:
        found = _JSON.decode(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise BrokenFileError("its JSON is broken or cut off: write one object a line") from error
    return [_checked(one) for one in (found if isinstance(found, list) else [found])]


def _parse(line: bytes) -> Record:
    try:
        return _checked(_JSON.decode(line.decode("utf-8-sig")), may_be_invalid=b"\\u" in line)
    except (ValueError, RecursionError):
        return "broken_row"


def _checked(record: object, *, may_be_invalid: bool = True) -> Record:
    """Return a JSON object as it is, and instead of another value, or one with half a character, its problem."""
    if not isinstance(record, dict):
        return "broken_row"
    try:
        if may_be_invalid:
            json.dumps(record, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # a lone surrogate, which is valid in JSON and not in UTF-8
        return "invalid_utf8"
    return record


def inferred_type(values: Iterable[Any]) -> pa.DataType:
    """Return the Arrow type of values of JSON: text if they are of several, null if there are only gaps.

    Numbers that are all whole are integers if one is written as such.

    >>> inferred_type([1, None, 0.5]), inferred_type([{"a": ["x"]}, {"b": True}])
    (DataType(double), StructType(struct<a: list<item: string>, b: bool>))
    """
    found = [value for value in values if value is not None]
    kinds = set(map(type, found))
    if kinds == {dict}:
        inner = defaultdict[str, list[Any]](list)
        for key, value in chain.from_iterable(map(dict.items, found)):
            inner[key].append(value)
        return pa.struct([(key, inferred_type(some)) for key, some in inner.items()])
    if kinds == {list}:
        return pa.list_(inferred_type(chain.from_iterable(found)))
    if kinds == {int, float} and all(value.is_integer() for value in found if isinstance(value, float)):
        kinds = {int}
    if kinds == {int}:
        return pa.int64() if all(-(2**63) <= value < 2**63 for value in found) else pa.string()
    if kinds and kinds <= {int, float}:
        return pa.float64()
    return pa.bool_() if kinds == {bool} else pa.string() if kinds else pa.null()
