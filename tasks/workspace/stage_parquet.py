"""Write a stage's Parquet files with its key in the footer, and read rows and columns of them.

Named arrays are written as such a file, too: one row for each array, exactly as it is.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.models.schemas import ARRAYS, DUPLICATES
from fineweb_mask.tasks.storage.atomic import atomic_write
from fineweb_mask.tasks.storage.parquet import VerifiedFile, read_table
from fineweb_mask.tasks.workspace.references import ShardFiles, StageFile, StageKey
from fineweb_mask.tasks.workspace.workspace import Workspace

FOOTER_KEY = b"fineweb_mask"
ROW_GROUP_BYTES = 64 * 2**20
ROW_GROUP_ROWS = 65_536


class ParquetStageWriter:
    """Writes record batches in row groups of about 64 MiB or 65,536 rows; made by `stage_file_writer`."""

    def __init__(self, writer: pq.ParquetWriter, schema: pa.Schema) -> None:
        self.rows = 0
        self.details: dict[str, Any] = {}
        self._writer = writer
        self._schema = schema
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Add a batch; it is written when a row group is full."""
        raise_if_stopped()
        self._pending.append(batch)
        self._pending_bytes += batch.nbytes
        self.rows += batch.num_rows
        if (
            self._pending_bytes >= ROW_GROUP_BYTES
            or sum(pending.num_rows for pending in self._pending) >= ROW_GROUP_ROWS
        ):
            self.flush()

    def flush(self) -> None:
        """Write the pending batches as a row group."""
        if self._pending:
            table = pa.Table.from_batches(self._pending, schema=self._schema)
            self._writer.write_table(table, row_group_size=max(table.num_rows, 1))
            self._pending.clear()
            self._pending_bytes = 0


@contextmanager
def stage_file_writer(
    path: Path,
    schema: pa.Schema,
    key: StageKey,
    **options: Any,  # noqa: ANN401
) -> Iterator[ParquetStageWriter]:
    """Write one stage file atomically, with its key and the writer's `details` in the footer."""
    with (
        atomic_write(path, is_read_here=False) as partial,
        pq.ParquetWriter(partial, schema, compression="zstd", write_page_checksum=True, **options) as writer,
    ):
        stage_writer = ParquetStageWriter(writer, schema)
        yield stage_writer
        stage_writer.flush()
        footer = {**asdict(key), "details": stage_writer.details}
        writer.add_key_value_metadata({FOOTER_KEY: json.dumps(footer, sort_keys=True).encode()})


def write_arrays(
    path: Path,
    key: StageKey,
    arrays: Mapping[str, NDArray[Any]] | Iterable[tuple[str, NDArray[Any]]],
    details: Mapping[str, Any],
) -> None:
    """Write arrays by name, one after the other, and details; equal ones give equal bytes.

    Those with the same prefix, up to the first `/`, can be read without the others.
    """
    with stage_file_writer(path, ARRAYS, key, use_dictionary=False) as writer:
        for name, array in arrays.items() if isinstance(arrays, Mapping) else arrays:
            writer.flush()
            columns = [[name], [array.dtype.str], [list(array.shape)], [np.ascontiguousarray(array).tobytes()]]
            writer.write(pa.record_batch(columns, schema=ARRAYS))
        writer.details = dict(details)


def read_arrays(path: Path, prefix: str | None = None) -> dict[str, NDArray[Any]]:
    """Read the arrays, or those with a prefix; they can be written to."""
    found: dict[str, NDArray[Any]] = {}
    with VerifiedFile(path, pre_buffer=True) as file:
        groups = list(range(file.metadata.num_row_groups))
        if prefix is not None:
            first = [file.metadata.row_group(group).column(0).statistics.min for group in groups]
            groups = [group for group in groups if first[group].partition("/")[0] == prefix]
        for batch in file.iter_batches(1, row_groups=groups):
            [(name, kind, shape, content)] = zip(*(column.to_pylist() for column in batch.columns), strict=True)
            found[name] = np.frombuffer(content, dtype=kind).reshape(shape).copy()
    return found


def row_group_ends(file: pq.ParquetFile) -> NDArray[np.int64]:
    """Return the number of rows up to the end of each row group."""
    sizes = [file.metadata.row_group(index).num_rows for index in range(file.metadata.num_row_groups)]
    return np.cumsum(sizes, dtype=np.int64)


def take_rows(path: Path, rows: NDArray[np.int64], columns: Sequence[str] | None = None) -> pa.Table:
    """Read the rows whose number, in the first column of a file, is one of `rows`, (n,) ascending.

    Rows and columns that the file lacks are left out. Only the row groups that hold such rows are read, and of a file
    at a URL, downloaded.
    """
    with VerifiedFile(path, pre_buffer=True) as file:
        number, *others = file.schema_arrow.names
        wanted = [number, *others] if columns is None else [name for name in columns if name in {number, *others}]
        parts = [file.schema_arrow.empty_table().select(wanted)]
        for index in range(file.metadata.num_row_groups):
            group = file.metadata.row_group(index)
            if group.num_rows:
                within = group.column(0).statistics
                first, last = np.searchsorted(rows, [within.min, within.max + 1])
                if first < last:
                    table = file.read_row_group(index, columns=list(dict.fromkeys([number, *wanted])))
                    places = pc.indices_nonzero(pc.is_in(table[number], pa.array(rows[first:last], table[number].type)))
                    parts.append(table.select(wanted).take(places))
    return pa.concat_tables(parts)


def duplicate_rows(workspace: Workspace, duplicates: StageFile) -> NDArray[np.uint32]:
    """Return the rows of a shard that are duplicates, ascending: (n,) uint32.

    Raises
    ------
    FileNotFoundError
        If it was not looked for them.
    """
    return np.asarray(read_duplicates(workspace, duplicates)["row"], dtype=np.uint32)


def read_duplicates(workspace: Workspace, duplicates: StageFile) -> pa.Table:
    """Read the rows of `DUPLICATES` that are of a shard; one without any has no file."""
    if duplicates.fingerprint and not duplicates.rows:
        return DUPLICATES.empty_table()
    return read_table(workspace.resolve(duplicates), filters=pc.field("shard") == duplicates.name)


def read_scores(workspace: Workspace, shard: ShardFiles, names: Sequence[str]) -> dict[str, NDArray[np.float32]]:
    """Read scores of a shard's documents by name, (rows,) each; NaN of duplicates, which have none."""
    table = read_table(workspace.resolve(shard.scores), columns=["row", *names])
    found = {name: np.full(shard.rows, np.nan, dtype=np.float32) for name in names}
    for name, values in found.items():
        values[table["row"].to_numpy()] = table[name].to_numpy()
    return found


def kept_batches(
    documents: pq.ParquetFile, rows: int, columns: Sequence[str], dropped: NDArray[np.uint32]
) -> Iterator[pa.RecordBatch]:
    """Yield a shard's documents without those that are dropped, from batches of `rows`; `row` is among the columns."""
    is_kept = np.ones(documents.metadata.num_rows, dtype=bool)
    is_kept[dropped] = False
    for batch in documents.iter_batches(rows, columns=columns):
        kept = batch.filter(pa.array(is_kept[batch["row"].to_numpy()])) if len(dropped) else batch
        if kept.num_rows:
            yield kept
