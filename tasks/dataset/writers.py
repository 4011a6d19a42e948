"""Write the files of the dataset, and read them.

A file that reaches the target size is followed by another.

Where row groups and files end depends only on the rows, not on the batches, so equal rows give equal bytes.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.models.settings import MaterializeSettings
from fineweb_mask.tasks.storage.parquet import VerifiedFile

ROW_GROUP_ROWS = 20_000
ROW_GROUP_BYTES = 256 * 2**20
TEXTS = ("text", "id", "url")  # mostly unique values: no dictionary encoding
BATCH_ROWS = 5_000
TOKENS = pa.schema([("token_count", pa.int64())])


class Written(NamedTuple):
    """Rows and tokens that were read back from the written files."""

    rows: int
    tokens: int


class PartWriter:
    """Writer of the rows of one folder, which it creates, as files named `prefix` and 00000, 00001 and so on.

    DuckDB does not write them: it marks a column without nulls as required, so the schemas of the files would differ.
    """

    _sink: Any = None
    _stream: Any = None

    def __init__(self, folder: Path, schema: pa.Schema, settings: MaterializeSettings, prefix: str = "part-") -> None:
        self._folder = folder
        self._prefix = prefix
        self._schema = schema
        self._settings = settings
        self._pending: list[pa.Table] = []
        self._parts = 0
        folder.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._flush(everything=True)
        self._close()

    def write(self, table: pa.Table) -> None:
        """Add rows; they are written when a row group is full."""
        raise_if_stopped()
        self._pending.append(table)
        self._flush(everything=False)

    def _flush(self, *, everything: bool) -> None:
        pending = pa.concat_tables(self._pending) if self._pending else pa.table([])
        if not pending.num_rows:
            return
        sizes = pc.fill_null(pc.binary_length(pending["text"]), 0).to_numpy().astype(np.int64)
        until = np.concatenate([[0], np.cumsum(sizes)])  # bytes of the texts before each row
        start = 0
        while start < pending.num_rows:
            full = int(np.searchsorted(until[1:], until[start] + ROW_GROUP_BYTES)) + 1
            end = min(start + ROW_GROUP_ROWS, full)
            if end > pending.num_rows and not everything:
                break
            self._write_row_group(pending.slice(start, end - start).combine_chunks())
            start = min(end, pending.num_rows)
        self._pending = [pending.slice(start)]

    def _write_row_group(self, table: pa.Table) -> None:
        if self._sink is not None and self._sink.tell() >= self._settings.file_size:
            self._close()
        if self._sink is None:
            name = f"{self._prefix}{self._parts:05d}.parquet"
            self._sink = pa.OSFile(str(self._folder / name), "wb")
            encoded = [name for name in self._schema.names if name not in TEXTS]
            self._stream = pq.ParquetWriter(
                self._sink, self._schema, compression="zstd", write_page_checksum=True, use_dictionary=encoded
            )
            self._parts += 1
        self._stream.write_table(table, row_group_size=table.num_rows)

    def _close(self) -> None:
        """Close the open file, if any."""
        if self._sink is not None:
            stream, sink, self._stream, self._sink = self._stream, self._sink, None, None
            with sink:
                stream.close()


def rows_of(name: str, source: Path | BinaryIO, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a dataset's file, a path or an open file of this name, with the columns of `schema`."""
    with VerifiedFile(source, name) as file:
        for batch in file.iter_batches(BATCH_ROWS, columns=schema.names):
            yield batch.select(schema.names).cast(schema)


def read_back(files: Iterable[Path]) -> Written:
    """Read dataset files; return their rows and the sum of `token_count`."""
    rows = tokens = 0
    for path in files:
        for batch in rows_of(path.name, path, TOKENS):
            rows += batch.num_rows
            tokens += pc.sum(batch["token_count"]).as_py() or 0
    return Written(rows, tokens)
