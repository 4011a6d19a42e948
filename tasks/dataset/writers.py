"""Write the files of the dataset as Parquet or JSON Lines, and read them.

A file that reaches the target size is followed by another.

Where row groups and files end depends only on the rows, not on the batches, so equal rows give equal bytes.
"""

import json
from collections.abc import Iterable, Iterator
from functools import cached_property
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Self

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.models.settings import MaterializeSettings
from fineweb_mask.tasks.catalog.views import identifier, literal
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

    They are zstd Parquet with page checksums, or JSON Lines compressed with zstd.
    """

    _sink: Any = None
    _stream: Any = None

    def __init__(self, folder: Path, schema: pa.Schema, settings: MaterializeSettings, prefix: str = "part-") -> None:
        self._folder = folder
        self._prefix = prefix
        self._schema = schema
        self._settings = settings
        self._is_lines = settings.format == "jsonl.zst"
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
            name = f"{self._prefix}{self._parts:05d}.{self._settings.format}"
            self._sink = pa.OSFile(str(self._folder / name), "wb")
            self._stream = self._open_stream()
            self._parts += 1
        self._append(table)

    def _close(self) -> None:
        """Close the open file, if any."""
        if self._sink is not None:
            stream, sink, self._stream, self._sink = self._stream, self._sink, None, None
            with sink:
                stream.close()

    def _open_stream(self) -> Any:  # noqa: ANN401 - an object with `close`
        """Return what writes a new file to `_sink`.

        DuckDB writes no Parquet: it marks a column without nulls as required, so the schemas of the files would differ.
        """
        if self._is_lines:
            return pa.CompressedOutputStream(self._sink, "zstd")  # one frame: some readers stop after the first
        encoded = [name for name in self._schema.names if name not in TEXTS]
        return pq.ParquetWriter(
            self._sink, self._schema, compression="zstd", write_page_checksum=True, use_dictionary=encoded
        )

    def _append(self, table: pa.Table) -> None:
        """Write a row group to `_stream`."""
        if not self._is_lines:
            self._stream.write_table(table, row_group_size=table.num_rows)
            return
        self._connection.register("rows", table)
        lines: pa.Table = self._connection.sql(self._query).to_arrow_table()
        self._stream.write("\n".join([*lines["line"].to_pylist(), ""]).encode())
        self._stream.flush()

    @cached_property
    def _connection(self) -> duckdb.DuckDBPyConnection:
        return duckdb.connect(config={"threads": 1})

    @cached_property
    def _query(self) -> str:
        """The query of the lines of the table `rows`; numbers that JSON cannot represent become null."""
        entries = []
        for name, kind in zip(self._schema.names, self._schema.types, strict=True):
            value, is_float = identifier(name), pa.types.is_floating(kind)
            entries.append(f"{literal(name)}: {f'CASE WHEN isfinite({value}) THEN {value} END' if is_float else value}")
        return f"SELECT to_json({{{', '.join(entries)}}})::VARCHAR AS line FROM rows"  # noqa: S608


def rows_of(name: str, source: Path | BinaryIO, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a dataset's file, a path or an open file of this name, with the columns of `schema`."""
    if name.endswith(".parquet"):
        with VerifiedFile(source, name) as file:
            for batch in file.iter_batches(BATCH_ROWS, columns=schema.names):
                yield batch.select(schema.names).cast(schema)
        return
    stream = source.open("rb") if isinstance(source, Path) else source
    with stream, TextIOWrapper(pa.CompressedInputStream(stream, "zstd"), "utf-8") as lines:
        found = ({column: record.get(column) for column in schema.names} for record in map(json.loads, lines))
        while rows := list(islice(found, BATCH_ROWS)):
            yield pa.RecordBatch.from_pylist(rows, schema=schema)


def read_back(files: Iterable[Path]) -> Written:
    """Read dataset files; return their rows and the sum of `token_count`."""
    rows = tokens = 0
    for path in files:
        for batch in rows_of(path.name, path, TOKENS):
            rows += batch.num_rows
            tokens += pc.sum(batch["token_count"]).as_py() or 0
    return Written(rows, tokens)
