"""Write the files of the dataset as Parquet or JSON Lines; a file that reaches the target size is followed by another.

Where row groups and files end depends only on the rows, not on the batches, so equal rows give equal bytes.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.models.settings import MaterializeSettings
from fineweb_mask.tasks.catalog.views import identifier, literal, pattern_of
from fineweb_mask.tasks.storage.parquet import VerifiedFile

ROW_GROUP_ROWS = 20_000
ROW_GROUP_BYTES = 256 * 2**20
TEXTS = ("text", "id", "url")  # mostly unique values: no dictionary encoding
JSON_LINE_BYTES = 16 * 2**20  # DuckDB's default limit


class Written(NamedTuple):
    """Rows and tokens that were read back from the written files."""

    rows: int
    tokens: int


class PartWriter(ABC):
    """Writer of the rows of one folder, which it creates, as files named `prefix` and 00000, 00001 and so on."""

    suffix: str
    longest = 0
    """Bytes of the longest line, in files of lines."""
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
            self._sink = pa.OSFile(str(self._folder / f"{self._prefix}{self._parts:05d}.{self.suffix}"), "wb")
            self._stream = self._open_stream()
            self._parts += 1
        self._append(table)

    def _close(self) -> None:
        """Close the open file, if any."""
        if self._sink is not None:
            stream, sink, self._stream, self._sink = self._stream, self._sink, None, None
            with sink:
                stream.close()

    @abstractmethod
    def _open_stream(self) -> Any:  # noqa: ANN401 - an object with `close`
        """Return what writes a new file to `_sink`."""

    @abstractmethod
    def _append(self, table: pa.Table) -> None:
        """Write a row group to `_stream`."""


class ParquetParts(PartWriter):
    """Writer of zstd Parquet with page checksums.

    DuckDB's writer is not used: it marks a column without nulls as required, so the schemas of the files would differ.
    """

    suffix = "parquet"

    def _open_stream(self) -> pq.ParquetWriter:
        encoded = [name for name in self._schema.names if name not in TEXTS]
        return pq.ParquetWriter(
            self._sink, self._schema, compression="zstd", write_page_checksum=True, use_dictionary=encoded
        )

    def _append(self, table: pa.Table) -> None:
        self._stream.write_table(table, row_group_size=table.num_rows)


class JsonParts(PartWriter):
    """Writer of JSON Lines, compressed with zstd; numbers that JSON cannot represent become null."""

    suffix = "jsonl.zst"

    @cached_property
    def _connection(self) -> duckdb.DuckDBPyConnection:
        return duckdb.connect(config={"threads": 1})

    @cached_property
    def _query(self) -> str:
        entries = []
        for name, kind in zip(self._schema.names, self._schema.types, strict=True):
            value, is_float = identifier(name), pa.types.is_floating(kind)
            entries.append(f"{literal(name)}: {f'CASE WHEN isfinite({value}) THEN {value} END' if is_float else value}")
        return f"SELECT to_json({{{', '.join(entries)}}})::VARCHAR AS line FROM rows"  # noqa: S608

    def _open_stream(self) -> pa.CompressedOutputStream:
        return pa.CompressedOutputStream(self._sink, "zstd")  # one frame: some readers stop after the first

    def _append(self, table: pa.Table) -> None:
        self._connection.register("rows", table)
        written: pa.Table = self._connection.sql(self._query).to_arrow_table()
        lines = written["line"]
        self.longest = max(self.longest, pc.max(pc.binary_length(lines)).as_py())
        self._stream.write("\n".join([*lines.to_pylist(), ""]).encode())
        self._stream.flush()


WRITERS: dict[str, type[PartWriter]] = {"parquet": ParquetParts, "jsonl.zst": JsonParts}


def read_back(files: Iterable[Path], connection: duckdb.DuckDBPyConnection, longest: int) -> Written:
    """Read dataset files with lines of at most `longest` bytes; return their rows and the sum of `token_count`."""
    rows = tokens = 0
    for path in files:
        if path.suffix == ".parquet":
            with VerifiedFile(path) as file:
                for batch in file.iter_batches(columns=["token_count"]):
                    rows += batch.num_rows
                    tokens += pc.sum(batch["token_count"]).as_py() or 0
        else:
            [(found, total)] = connection.execute(
                """
                SELECT count(*), coalesce(sum(token_count), 0)
                FROM read_json($path, format = 'newline_delimited', compression = 'zstd',
                               columns = {token_count: 'BIGINT'},
                               hive_partitioning = false, maximum_object_size = $longest)
                """,
                {"path": pattern_of(str(path)), "longest": max(JSON_LINE_BYTES, 2 * longest)},
            ).fetchall()
            rows, tokens = rows + found, tokens + int(total)
    return Written(rows, tokens)
