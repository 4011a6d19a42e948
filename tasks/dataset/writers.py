"""Write the files of the dataset.

A file that reaches the target size is followed by another. Where row groups and files end depends only on the rows and
on where their batches begin, so equal batches give equal bytes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.models.settings import MaterializeSettings
from fineweb_mask.tasks.dataset.rows import check_folders, folder_name

ROW_GROUP_ROWS = 20_000
ROW_GROUP_BYTES = 256 * 2**20
TEXTS = ("text", "id", "url")  # mostly unique values: no dictionary encoding
PENDING_BYTES = 512 * 2**20
OPEN_FILES = 256


@dataclass(slots=True)
class _Folder:
    """What waits to be written to a folder, and how many files it has."""

    pending: list[pa.Table] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0  # of what waits
    files: int = 0


class DatasetWriter:
    """Writer of the rows of all folders, each into files of its own, named `prefix` and 00000, 00001 and so on.

    A folder's rows are written when they are enough for a row group, or are the most of more than `PENDING_BYTES` that
    wait for one. If more than `OPEN_FILES` files would be open, the one that was opened first is ended, and its folder
    goes on in another.

    DuckDB does not write them: it marks a column without nulls as required, so the schemas of the files would differ.

    Parameters
    ----------
    data
        The folder of all folders.
    schema
        The columns.
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
        self._open: dict[str, pq.ParquetWriter] = {}  # by the folder's value, in the order in which they were opened
        self._pending_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            for value, folder in self._folders.items():
                if folder.rows:
                    self._write_row_group(value)
        for file in self._open.values():
            file.close()

    def write(self, table: pa.Table, values: pa.ChunkedArray) -> None:
        """Add rows, each to the folder of its value; an empty value is that of the folder `data` itself.

        Raises
        ------
        WorkspaceError
            If there are too many folders.
        """
        raise_if_stopped()
        for value, rows in by_value(table, values):
            folder = self._folders.setdefault(value, _Folder())
            folder.pending.append(rows)
            folder.rows += rows.num_rows
            folder.bytes += rows.nbytes
            self._pending_bytes += rows.nbytes
            if folder.rows >= ROW_GROUP_ROWS or folder.bytes >= ROW_GROUP_BYTES:
                self._write_row_group(value)
        check_folders(len(self._folders), self._settings.layout)
        while self._pending_bytes > PENDING_BYTES:
            self._write_row_group(max(self._folders, key=lambda value: self._folders[value].bytes))

    def _write_row_group(self, value: str) -> None:
        """Write the rows of a folder that wait, into its open file if that has not its size."""
        folder = self._folders[value]
        if value in self._open and self._open[value].file_handle.tell() >= self._settings.file_size:
            self._open.pop(value).close()
        if value not in self._open:
            if len(self._open) >= OPEN_FILES:
                self._open.pop(next(iter(self._open))).close()
            path = self._data / (folder_name(value) if value else "") / f"{self._prefix}{folder.files:05d}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            encoded = [name for name in self._schema.names if name not in TEXTS]
            self._open[value] = pq.ParquetWriter(
                path, self._schema, compression="zstd", write_page_checksum=True, use_dictionary=encoded
            )
            folder.files += 1
        rows = pa.concat_tables(folder.pending).combine_chunks()
        self._open[value].write_table(rows, row_group_size=rows.num_rows)
        self._pending_bytes -= folder.bytes
        folder.pending, folder.rows, folder.bytes = [], 0, 0


def by_value(table: pa.Table, values: pa.ChunkedArray) -> Iterator[tuple[Any, pa.Table]]:
    """Yield each value with its rows, which hold nothing of the other rows in memory."""
    encoded = values.combine_chunks().dictionary_encode()
    numbers = encoded.indices.to_numpy()
    places = np.split(np.argsort(numbers, kind="stable"), np.cumsum(np.bincount(numbers))[:-1])
    for value, rows in zip(encoded.dictionary.to_pylist(), places, strict=True):
        yield value, table.take(rows) if len(places) > 1 else table
