"""Write the files of the dataset, and read them.

A file that reaches the target size is followed by another. Where row groups and files end depends only on the rows and
on where their batches begin, so equal batches give equal bytes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.models.settings import MaterializeSettings
from fineweb_mask.tasks.dataset.rows import check_folders, folder_name
from fineweb_mask.tasks.storage.parquet import VerifiedFile

ROW_GROUP_ROWS = 20_000
ROW_GROUP_BYTES = 256 * 2**20
TEXTS = ("text", "id", "url")  # mostly unique values: no dictionary encoding
PENDING_BYTES = 512 * 2**20
OPEN_FILES = 256
BATCH_ROWS = 5_000


@dataclass(slots=True)
class _Folder:
    """What waits to be written to a folder, and how many files it has."""

    pending: list[pa.Table] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0  # of the texts that wait
    files: int = 0


class _File(NamedTuple):
    """An open file."""

    sink: Any
    stream: Any


class DatasetWriter:
    """Writer of the rows of all folders, each into files of its own, named `prefix` and 00000, 00001 and so on.

    A folder's rows are written when they fill a row group. If the texts of all rows that wait for one have more than
    `PENDING_BYTES`, the folder with the most of them writes a smaller one. If it would open more than `OPEN_FILES`
    files, the one that was opened first is ended, and its folder goes on in another.

    DuckDB does not write them: it marks a column without nulls as required, so the schemas of the files would differ.

    Parameters
    ----------
    data
        The folder of all folders.
    schema
        The columns, with `text` among them.
    settings
        The layout and the size of a file.
    prefix
        What the files' names begin with.
    """

    def __init__(self, data: Path, schema: pa.Schema, settings: MaterializeSettings, prefix: str = "part-") -> None:
        self._data = data
        self._schema = schema
        self._settings = settings
        self._prefix = prefix
        self._folders: dict[str, _Folder] = {}
        self._open: dict[str, _File] = {}  # by the folder's value, in the order in which they were opened
        self._pending_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            for value, folder in self._folders.items():
                while folder.rows:
                    self._write_row_group(value)
                self._close(value)
        for value in list(self._open):
            self._close(value)

    def write(self, table: pa.Table, values: pa.ChunkedArray) -> None:
        """Add rows, each to the folder of its value; an empty value is that of the folder `data` itself.

        Raises
        ------
        WorkspaceError
            If there are too many folders.
        """
        raise_if_stopped()
        for value, rows in _by_value(table, values):
            folder = self._folders.setdefault(value, _Folder())
            size = int(_text_bytes(rows).sum())
            folder.pending.append(rows)
            folder.rows += rows.num_rows
            folder.bytes += size
            self._pending_bytes += size
            while folder.rows >= ROW_GROUP_ROWS or folder.bytes >= ROW_GROUP_BYTES:
                self._write_row_group(value)
        check_folders(len(self._folders), self._settings.layout)
        while self._pending_bytes > PENDING_BYTES:
            self._write_row_group(max(self._folders, key=lambda value: self._folders[value].bytes))

    def _write_row_group(self, value: str) -> None:
        """Write the first rows of a folder that wait, at most a full row group."""
        folder = self._folders[value]
        pending = pa.concat_tables(folder.pending)
        until = np.cumsum(_text_bytes(pending))  # bytes of the texts of each row and those before it
        end = min(ROW_GROUP_ROWS, int(np.searchsorted(until, ROW_GROUP_BYTES)) + 1, pending.num_rows)
        self._file(value).stream.write_table(pending.slice(0, end).combine_chunks(), row_group_size=end)
        folder.pending = [pending.slice(end)]
        folder.rows -= end
        folder.bytes -= int(until[end - 1])
        self._pending_bytes -= int(until[end - 1])

    def _file(self, value: str) -> _File:
        """Return the open file of a folder, which has room for another row group."""
        if value in self._open and self._open[value].sink.tell() >= self._settings.file_size:
            self._close(value)
        if value not in self._open:
            if len(self._open) >= OPEN_FILES:
                self._close(next(iter(self._open)))
            folder = self._folders[value]
            path = self._data / (folder_name(value) if value else "") / f"{self._prefix}{folder.files:05d}.parquet"
            folder.files += 1
            path.parent.mkdir(parents=True, exist_ok=True)
            sink = pa.OSFile(str(path), "wb")
            encoded = [name for name in self._schema.names if name not in TEXTS]
            stream = pq.ParquetWriter(
                sink, self._schema, compression="zstd", write_page_checksum=True, use_dictionary=encoded
            )
            self._open[value] = _File(sink, stream)
        return self._open[value]

    def _close(self, value: str) -> None:
        """Close the open file of a folder, if it has one."""
        if value in self._open:
            sink, stream = self._open.pop(value)
            with sink:
                stream.close()


def _text_bytes(table: pa.Table) -> NDArray[np.int64]:
    """Return the bytes of each row's text."""
    sizes: NDArray[np.int64] = pc.fill_null(pc.binary_length(table["text"]), 0).to_numpy().astype(np.int64)
    return sizes


def _by_value(table: pa.Table, values: pa.ChunkedArray) -> Iterator[tuple[str, pa.Table]]:
    """Yield each value with its rows, which hold nothing of the other rows in memory."""
    encoded = values.combine_chunks().dictionary_encode()
    if len(encoded.dictionary) == 1:
        yield encoded.dictionary[0].as_py(), table
        return
    numbers = encoded.indices.to_numpy()
    places = np.split(np.argsort(numbers, kind="stable"), np.cumsum(np.bincount(numbers))[:-1])
    for value, rows in zip(encoded.dictionary.to_pylist(), places, strict=True):
        yield value, table.take(rows)


def rows_of(name: str, source: Path | BinaryIO, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a dataset's file, a path or an open file of this name, with the columns of `schema`."""
    with VerifiedFile(source, name) as file:
        for batch in file.iter_batches(BATCH_ROWS, columns=schema.names):
            yield batch.select(schema.names).cast(schema)
