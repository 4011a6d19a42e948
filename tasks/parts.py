"""Finished parts of a file that is still being made: a shard of a million documents does not start over when killed."""

import shutil
from pathlib import Path

import pyarrow as pa

from tasks.lake import StageKey, written_file


class Parts:
    """Record batches under the output's folder, kept under the output's key until the whole is written.

    Parameters
    ----------
    output
        The file that the parts belong to.
    key
        What it depends on; parts of another key are removed.
    """

    def __init__(self, output: Path, key: StageKey) -> None:
        self._all = output.parent / ".parts" / output.stem
        self._folder = self._all / key.fingerprint
        if self._all.is_dir():
            for other in self._all.iterdir():
                if other != self._folder:
                    shutil.rmtree(other)

    def read(self, first_row: int, rows: int, schema: pa.Schema) -> pa.RecordBatch | None:
        """Return the part that begins at a row, or None if there is none of these rows and columns."""
        try:
            with pa.memory_map(str(self._path(first_row))) as source:
                batch = pa.ipc.open_file(source).get_batch(0)
        except (OSError, pa.ArrowInvalid):
            return None
        return batch if batch.num_rows == rows and batch.schema.equals(schema) else None

    def write(self, first_row: int, batch: pa.RecordBatch) -> None:
        """Keep a part; it is on the disk when this returns."""
        with written_file(self._path(first_row)) as partial, pa.ipc.new_file(str(partial), batch.schema) as writer:
            writer.write_batch(batch)

    def discard(self) -> None:
        """Remove all parts: the whole is written."""
        shutil.rmtree(self._all, ignore_errors=True)

    def _path(self, first_row: int) -> Path:
        return self._folder / f"{first_row:09d}.arrow"
