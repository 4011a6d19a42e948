"""Finished parts of a file that is still being made: a shard of a million documents does not start over when killed."""

import shutil
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import pyarrow as pa

from fineweb_mask.tasks.storage.atomic import atomic_write
from fineweb_mask.tasks.workspace.references import StageKey
from fineweb_mask.tasks.workspace.stage_parquet import written_key
from fineweb_mask.tasks.workspace.workspace import Workspace

Values_contra = TypeVar("Values_contra", contravariant=True)


class RowWriter(Protocol[Values_contra]):
    """Writes a stage file in the order of its rows."""

    @property
    def schema(self) -> pa.Schema:
        """Columns of the file."""

    def batch(self, rows: pa.Array, values: Values_contra) -> pa.RecordBatch:
        """Return rows with what belongs to them."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Write rows that `batch` returned."""


def discard_finished(workspace: Workspace) -> None:
    """Remove the parts of files that are whole: of a run that was killed after it had written them."""
    for parts in workspace.root.rglob(".parts"):
        for shard in parts.iterdir():
            key = written_key(parts.parent / f"{shard.name}.parquet")
            if key is not None and (shard / key.fingerprint).is_dir():
                shutil.rmtree(shard)


class Checkpoints(Generic[Values_contra]):
    """Writes a stage file through a writer, and keeps what it has written until the whole is there.

    Parameters
    ----------
    writer
        The writer of the file.
    output
        Where the file is to lie; parts lie in a hidden folder beside it.
    key
        What the file depends on; parts of another key are removed.
    """

    def __init__(self, writer: RowWriter[Values_contra], output: Path, key: StageKey) -> None:
        self._writer = writer
        self._all = output.parent / ".parts" / output.stem
        self._folder = self._all / key.fingerprint
        if self._all.is_dir():
            for other in self._all.iterdir():
                if other != self._folder:
                    shutil.rmtree(other)

    def kept(self, rows: pa.Array) -> pa.RecordBatch | None:
        """Return the part of these consecutive rows if an earlier run has finished it, else None."""
        try:
            with pa.memory_map(str(self._path(rows))) as source:
                batch = pa.ipc.open_file(source).get_batch(0)
        except (OSError, pa.ArrowInvalid):
            return None
        return batch if batch.schema.equals(self._writer.schema) and batch["row"].equals(rows) else None

    def write_kept(self, batch: pa.RecordBatch) -> None:
        """Write a part that was kept."""
        self._writer.write(batch)

    def write(self, rows: pa.Array, values: Values_contra) -> None:
        """Keep the next rows as a part, which is on the disk when this returns, and write them."""
        batch = self._writer.batch(rows, values)
        with atomic_write(self._path(rows)) as partial, pa.ipc.new_file(str(partial), batch.schema) as file:
            file.write_batch(batch)
        self._writer.write(batch)

    def discard(self) -> None:
        """Remove all parts: the whole is written."""
        shutil.rmtree(self._all, ignore_errors=True)

    def _path(self, rows: pa.Array) -> Path:
        return self._folder / f"{rows[0].as_py():09d}.arrow"
