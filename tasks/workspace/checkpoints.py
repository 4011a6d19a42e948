"""Keep checkpoints within a shard, so that a killed run resumes mid-shard."""

import shutil
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import pyarrow as pa

from fineweb_mask.tasks.storage.atomic import atomic_write
from fineweb_mask.tasks.storage.remote.copies import on_this_machine
from fineweb_mask.tasks.workspace.stage_parquet import key_and_details, read_footer
from fineweb_mask.tasks.workspace.workspace import Workspace

Values_contra = TypeVar("Values_contra", contravariant=True)

CHECKSUM_BYTES = 4  # a CRC32, after the batch


class RowWriter(Protocol[Values_contra]):
    """Writes a stage file row by row, in order."""

    @property
    def schema(self) -> pa.Schema:
        """Arrow schema of the file."""

    def batch(self, rows: pa.Array, values: Values_contra) -> pa.RecordBatch:
        """Return a batch of row numbers, int64 (n,), and their values."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch made by `batch`."""


def discard_finished(workspace: Workspace) -> None:
    """Delete checkpoints of complete files, left by runs that were killed right after writing the file."""
    for folder in workspace.here.glob("*/.parts/*"):
        output = workspace.root / folder.parents[1].relative_to(workspace.here) / f"{folder.name}.parquet"
        if key_and_details(read_footer(output)) is not None:
            shutil.rmtree(folder, ignore_errors=True)


class Checkpoints(Generic[Values_contra]):
    """Writes a stage file through a writer, with a checkpoint on disk for every batch until the file is complete.

    The checkpoints are in a hidden folder next to the file, which has the file's name and so belongs to its key; of a
    workspace at a URL, they are below `Workspace.here`. Two runs that write the same file at once share the folder; the
    first to complete the file deletes it.
    """

    def __init__(self, writer: RowWriter[Values_contra], output: Path) -> None:
        self._writer = writer
        self._folder = on_this_machine(output).parent / ".parts" / output.stem

    def find(self, rows: pa.Array) -> pa.RecordBatch | None:
        """Return the checkpoint of these consecutive row numbers, int64 (n,), or None if no earlier run finished it."""
        try:
            content = self._path(rows).read_bytes()
        except OSError:
            return None
        if zlib.crc32(content[:-CHECKSUM_BYTES]).to_bytes(CHECKSUM_BYTES) != content[-CHECKSUM_BYTES:]:
            return None
        batch = pa.ipc.open_file(pa.py_buffer(content)[:-CHECKSUM_BYTES]).get_batch(0)
        return batch if batch.schema.equals(self._writer.schema) and batch["row"].equals(rows) else None

    def restore(self, batch: pa.RecordBatch) -> None:
        """Write a batch that `find` returned."""
        self._writer.write(batch)

    def write(self, rows: pa.Array, values: Values_contra) -> None:
        """Write the next rows; their checkpoint is on disk when this returns, unless another run completed the file."""
        batch = self._writer.batch(rows, values)
        content = pa.BufferOutputStream()
        with pa.ipc.new_file(content, batch.schema) as file:
            file.write_batch(batch)
        with (
            # another run completed the file and deleted the folder; mkdir says either error for it
            suppress(FileNotFoundError, FileExistsError),
            atomic_write(self._path(rows)) as partial,
            partial.open("wb") as stream,
        ):
            found = content.getvalue()
            stream.write(found)
            stream.write(zlib.crc32(found).to_bytes(CHECKSUM_BYTES))
        self._writer.write(batch)

    def discard(self) -> None:
        """Delete all checkpoints of the file; call it when the file is complete."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _path(self, rows: pa.Array) -> Path:
        return self._folder / f"{rows[0].as_py():09d}.arrow"
