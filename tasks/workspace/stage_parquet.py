"""Parquet files of the stages: written in row groups, and known to be current by their footers.

Promises: a file says in its footer which stage, settings and inputs it came from; it is current only if that agrees
with what would be built now.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.tasks.storage.atomic import atomic_write
from fineweb_mask.tasks.storage.mirror import mirror_of, size_of
from fineweb_mask.tasks.workspace.references import StageFile, StageKey
from fineweb_mask.tasks.workspace.workspace import Workspace

FOOTER_KEY = b"fineweb_mask"
ROW_GROUP_BYTES = 64 * 2**20
ROW_GROUP_ROWS = 65_536


class ParquetStageWriter:
    """Streams record batches into one row group after the other; made by `stage_file_writer`."""

    def __init__(self, writer: pq.ParquetWriter, schema: pa.Schema) -> None:
        self.rows = 0
        self.details: dict[str, Any] = {}
        self._writer = writer
        self._schema = schema
        self._pending: list[pa.RecordBatch] = []

    def write(self, batch: pa.RecordBatch) -> None:
        """Add a batch; it reaches the disk when a row group is full."""
        raise_if_stopped()
        self._pending.append(batch)
        self.rows += batch.num_rows
        if (
            sum(pending.nbytes for pending in self._pending) >= ROW_GROUP_BYTES
            or sum(pending.num_rows for pending in self._pending) >= ROW_GROUP_ROWS
        ):
            self.flush()

    def flush(self) -> None:
        """Write what is pending as a row group."""
        if self._pending:
            table = pa.Table.from_batches(self._pending, schema=self._schema)
            self._writer.write_table(table, row_group_size=max(table.num_rows, 1))
            self._pending.clear()


@contextmanager
def stage_file_writer(
    path: Path,
    schema: pa.Schema,
    key: StageKey,
    **options: Any,  # noqa: ANN401
) -> Iterator[ParquetStageWriter]:
    """Write one stage file: temporary name, footer, check of rows and schema, rename.

    Parameters
    ----------
    path
        Where the file is to lie.
    schema
        Its Arrow schema.
    key
        What it depends on; written to the footer together with the writer's `details`.
    options
        Further options of `pyarrow.parquet.ParquetWriter`.

    Raises
    ------
    LakeError
        If what was written does not read back with the same rows and columns.
    """
    with atomic_write(path) as partial:
        with pq.ParquetWriter(
            partial, schema, compression="zstd", write_page_checksum=True, store_schema=True, **options
        ) as writer:
            stage_writer = ParquetStageWriter(writer, schema)
            yield stage_writer
            stage_writer.flush()
            footer = {**key.model_dump(), "details": stage_writer.details}
            writer.add_key_value_metadata({FOOTER_KEY: json.dumps(footer, sort_keys=True).encode()})
        written = pq.ParquetFile(partial)
        if written.metadata.num_rows != stage_writer.rows or not written.schema_arrow.equals(schema):
            raise WorkspaceError(
                f"{path.name} did not read back as written: {written.metadata.num_rows} rows, {stage_writer.rows} sent"
            )


def read_footer(path: Path) -> pq.FileMetaData | None:
    """Return the Parquet footer of a stage file, or None if there is no whole one; reads no more than it.

    Raises
    ------
    RemoteError
        If the file is at a URL that does not answer.
    """
    mirror = mirror_of(path)
    try:
        if mirror is not None and not path.is_file():
            return mirror.footer(path)
        return pq.read_metadata(path)
    except (FileNotFoundError, pa.ArrowInvalid):
        return None
    except OSError:
        if mirror is not None:
            raise
        return None


def _footer(metadata: pq.FileMetaData | None) -> tuple[StageKey, dict[str, Any]] | None:
    """Return what a stage wrote to the footer of its file, or None if it is no stage's."""
    try:
        footer = None if metadata is None else json.loads((metadata.metadata or {}).get(FOOTER_KEY, b"null"))
        return None if footer is None else (StageKey.model_validate(footer), footer["details"])
    except ValueError:
        return None


def written_key(path: Path) -> StageKey | None:
    """Return what a stage file was written under, or None if there is no whole one."""
    footer = _footer(read_footer(path))
    return None if footer is None else footer[0]


def written_fingerprint(path: Path) -> str | None:
    """Return what depends on a stage file depends on, or None if there is no whole one."""
    footer = _footer(read_footer(path))
    return None if footer is None else str(footer[1].get("content", footer[0].fingerprint))


def current_parquet(workspace: Workspace, path: Path, name: str, key: StageKey) -> StageFile | None:
    """Return a reference to a stage file if it is whole and its footer agrees with `key`, else None."""
    metadata, size = read_footer(path), size_of(path)
    footer = _footer(metadata)
    if metadata is None or footer is None or size is None or footer[0] != key:
        return None
    details = footer[1]
    return StageFile(
        stage=key.stage,
        name=name,
        path=workspace.relative(path),
        rows=metadata.num_rows,
        bytes=size,
        fingerprint=details.get("content", key.fingerprint),
        details=details,
        cached=True,
    )
