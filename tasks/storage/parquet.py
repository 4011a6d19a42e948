"""Read Parquet files with their checksums verified, and write them with checksums.

Every page that we write has a CRC32, which PyArrow compares where it is asked to. Nothing in the format guards the
footer, which says what the columns are called and where their pages are, and DuckDB compares nothing. So our files
have more checksums: between the last page and the footer, where readers of Parquet do not look, are a CRC32 of the
bytes of each column in each row group, and one of these sums and the footer. PyArrow's reads verify the footer and the
pages; before DuckDB reads files, `check_columns` compares the sums of their columns, without decoding anything.

A file without these, of another program, is verified as far as it has checksums.
"""

import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from io import RawIOBase
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Self

import pyarrow as pa
import pyarrow.parquet as pq

from fineweb_mask.models.errors import StorageError
from fineweb_mask.models.runtime.stopping import raise_if_stopped

Stream = BinaryIO | RawIOBase
Source = Path | str | Stream

CHECKSUMS = struct.Struct("<2I 8s")  # CRC32 of the columns' sums and the footer; number of these sums; `MAGIC`
MAGIC = b"FWMSEAL1"
END = struct.Struct("<I4s")  # bytes of the footer; PAR1
TAIL_BYTES = 64 * 2**10  # read at first: most footers are smaller
CHUNK_BYTES = 4 * 2**20
CHECKS = 100_000
"""Files whose check is remembered, so that a process checks a file once."""


class DamagedFileError(StorageError):
    """A file does not hold what was written to it.

    Attributes
    ----------
    path
        The file.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} is damaged: {reason}")
        self.path = path
        self._reason = reason

    def __reduce__(self) -> tuple[type[Self], tuple[str, str]]:
        """Let processes send it to each other."""
        return type(self), (self.path, self._reason)


class _Tail(NamedTuple):
    """What a file has after its pages."""

    footer: bytes  # with its length and PAR1
    sums: tuple[int, ...] | None  # CRC32 of each column of each row group, in the order of the file; None: it has none


class VerifiedFile(pq.ParquetFile):  # type: ignore[misc]
    """A Parquet file whose footer and pages are verified when they are read.

    Parameters
    ----------
    source
        The path, or an open file.
    name
        What errors call an open file.
    options
        Those of `pyarrow.parquet.ParquetFile`.

    Raises
    ------
    DamagedFileError
        Here or while reading: if the file is damaged.
    OSError
        If it cannot be opened or read.
    """

    def __init__(self, source: Source, name: str = "", **options: Any) -> None:  # noqa: ANN401
        self._name = name or str(source)
        with _explained(self._name):
            super().__init__(source, metadata=_verified_metadata(source), page_checksum_verification=True, **options)

    def read(self, *arguments: Any, **options: Any) -> pa.Table:  # noqa: ANN401
        """Read the whole file, as `pyarrow.parquet.ParquetFile.read`."""
        with _explained(self._name):
            return super().read(*arguments, **options)

    def read_row_group(self, *arguments: Any, **options: Any) -> pa.Table:  # noqa: ANN401
        """Read a row group, as `pyarrow.parquet.ParquetFile.read_row_group`."""
        with _explained(self._name):
            return super().read_row_group(*arguments, **options)

    def read_row_groups(self, *arguments: Any, **options: Any) -> pa.Table:  # noqa: ANN401
        """Read row groups, as `pyarrow.parquet.ParquetFile.read_row_groups`."""
        with _explained(self._name):
            return super().read_row_groups(*arguments, **options)

    def iter_batches(self, *arguments: Any, **options: Any) -> Iterator[pa.RecordBatch]:  # noqa: ANN401
        """Yield batches, as `pyarrow.parquet.ParquetFile.iter_batches`."""
        batches = super().iter_batches(*arguments, **options)
        while True:
            with _explained(self._name):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch


def read_table(path: Path | str, columns: Sequence[str] | None = None, **options: Any) -> pa.Table:  # noqa: ANN401
    """Return the table of a file, verified; `options` are those of `pyarrow.parquet.read_table`.

    Raises
    ------
    DamagedFileError
        If the file is damaged.
    KeyError
        If it lacks one of the columns.
    """
    names = read_schema(path).names
    if missing := sorted(set(columns or []).difference(names)):
        raise KeyError(f"{path} has no column {missing[0]!r}, it has {', '.join(names)}")
    with _explained(str(path)):
        return pq.read_table(path, columns=columns, page_checksum_verification=True, **options)


def read_metadata(source: Source, name: str = "") -> pq.FileMetaData:
    """Return the footer of a file, verified; errors call an open file `name`.

    Raises
    ------
    DamagedFileError
        If the footer is damaged, or the file is not Parquet.
    """
    with _explained(name or str(source)):
        return _verified_metadata(source)


def read_schema(path: Path | str) -> pa.Schema:
    """Return the columns of a file, from its verified footer.

    Raises
    ------
    DamagedFileError
        If the footer is damaged, or the file is not Parquet.
    """
    with _explained(str(path)):
        return _verified_metadata(path).schema.to_arrow_schema()


def write_table(table: pa.Table, path: Path, **options: Any) -> None:  # noqa: ANN401
    """Write a table with checksums as a file on this machine; `options` are those of `pyarrow.parquet.write_table`."""
    pq.write_table(table, path, write_page_checksum=True, **options)
    add_checksums(path)


def add_checksums(path: Path) -> None:
    """Write the checksums of a complete file's columns and footer into it; the file is on this machine."""
    with path.open("r+b") as stream:
        footer = _read_tail(stream).footer
        places = [place for _, place in _places(_metadata_of(footer))]
        sums = b"".join(struct.pack("<I", _crc_of(stream, *place)) for place in places)
        stream.seek(-len(footer), os.SEEK_END)
        stream.write(sums + CHECKSUMS.pack(_crc_of_sums(sums, footer), len(places), MAGIC) + footer)


def check_columns(paths: Iterable[Path | str], columns: Iterable[str] | None = None) -> None:
    """Verify columns of files on this machine, by default all, before another library than PyArrow reads them.

    A file is checked once, as long as its size and time of change stay the same.

    Raises
    ------
    DamagedFileError
        If a file is damaged.
    """
    wanted = None if columns is None else frozenset(columns)
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
        for _ in threads.map(lambda path: _check(str(path), wanted), paths):
            pass


def _check(path: str, columns: frozenset[str] | None) -> None:
    found = Path(path).stat()
    _check_once(path, found.st_size, found.st_mtime_ns, columns)


@lru_cache(maxsize=CHECKS)
def _check_once(path: str, size: int, mtime_ns: int, columns: frozenset[str] | None) -> None:  # noqa: ARG001
    with _explained(path), Path(path).open("rb") as stream:
        tail = _read_tail(stream)
        metadata = _metadata_of(tail.footer)
        if tail.sums is None:
            _decode(path, columns)
            return
        for (column, place), expected in zip(_places(metadata), tail.sums, strict=True):
            raise_if_stopped()
            if (columns is None or column in columns) and _crc_of(stream, *place) != expected:
                raise DamagedFileError(
                    path, f"column {column} has another checksum than was written: run again, or copy the file again"
                )


def _decode(path: str, columns: frozenset[str] | None) -> None:
    """Read columns of a file without our checksums, so that PyArrow verifies their pages."""
    with VerifiedFile(path) as file:
        names = [name for name in file.schema_arrow.names if columns is None or name in columns]
        for _ in file.iter_batches(columns=names):
            raise_if_stopped()


def _places(metadata: pq.FileMetaData) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield the name, and the first byte and the number of bytes, of each column of each row group."""
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        for index in range(metadata.num_columns):
            column = row_group.column(index)
            offsets = [column.data_page_offset, column.dictionary_page_offset if column.has_dictionary_page else None]
            first = min(offset for offset in offsets if offset is not None)
            yield column.path_in_schema.partition(".")[0], (first, column.total_compressed_size)


def _crc_of(stream: BinaryIO, first: int, size: int) -> int:
    stream.seek(first)
    crc = 0
    while size > 0 and (chunk := stream.read(min(size, CHUNK_BYTES))):
        crc = zlib.crc32(chunk, crc)
        size -= len(chunk)
    return crc


def _crc_of_sums(sums: bytes, footer: bytes) -> int:
    return zlib.crc32(footer, zlib.crc32(sums))


def _metadata_of(footer: bytes) -> pq.FileMetaData:
    return pq.read_metadata(pa.BufferReader(b"PAR1" + footer))


def _verified_metadata(source: Source) -> pq.FileMetaData:
    if isinstance(source, Path | str):
        with Path(source).open("rb") as stream:
            return _metadata_of(_read_tail(stream).footer)
    return _metadata_of(_read_tail(source).footer)


def _read_tail(stream: Stream) -> _Tail:
    size = stream.seek(0, os.SEEK_END)
    tail = _last_bytes(stream, size, TAIL_BYTES)
    length, magic = END.unpack_from(tail, len(tail) - END.size) if len(tail) >= END.size else (size, b"")
    length += END.size
    if magic != b"PAR1" or length > size:
        raise pa.ArrowInvalid("it is not a complete Parquet file")
    if length + CHECKSUMS.size > len(tail):
        tail = _last_bytes(stream, size, length + CHECKSUMS.size)
    footer, before = tail[-length:], tail[:-length]
    if len(before) < CHECKSUMS.size or not before.endswith(MAGIC):
        return _Tail(footer, None)
    crc, count, _ = CHECKSUMS.unpack(before[-CHECKSUMS.size :])
    sums = _last_bytes(stream, size, length + CHECKSUMS.size + 4 * count)[: 4 * count]
    if _crc_of_sums(sums, footer) != crc:
        raise pa.ArrowInvalid("its footer has another checksum than was written: run again, or copy the file again")
    return _Tail(footer, struct.unpack(f"<{count}I", sums))


def _last_bytes(stream: Stream, size: int, count: int) -> bytes:
    stream.seek(max(0, size - count))
    return stream.read(min(size, count)) or b""


@contextmanager
def _explained(path: str) -> Iterator[None]:
    """Raise `DamagedFileError` for errors that PyArrow raises for what a file holds."""
    try:
        yield
    except OSError as error:
        if error.errno is not None or type(error) is not OSError:
            raise
        raise DamagedFileError(path, str(error)) from error
    except (pa.ArrowInvalid, UnicodeDecodeError) as error:
        raise DamagedFileError(path, str(error)) from error
