"""Compute with the documents of a shard that are no duplicates: from the others nothing is selected."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import pyarrow as pa

from fineweb_mask.models.runtime.progress import track_by_size
from fineweb_mask.tasks.inference.prefetch import background_writer, prefetched
from fineweb_mask.tasks.storage.parquet import VerifiedFile
from fineweb_mask.tasks.workspace.job import StageJob
from fineweb_mask.tasks.workspace.references import StageFile
from fineweb_mask.tasks.workspace.stage_parquet import duplicate_rows, kept_batches

Prepared = TypeVar("Prepared")


class EligibleJob(StageJob):
    """A job on one shard's documents, duplicates aside."""

    documents: StageFile
    duplicates: StageFile  # rows that the output does not have

    @property
    def name(self) -> str:
        """The name of the shard."""
        return self.documents.name

    def write_batches(
        self,
        documents: VerifiedFile,
        rows: int,
        columns: Sequence[str],
        prepare: Callable[[pa.RecordBatch], Prepared],
        compute: Callable[[pa.RecordBatch, Prepared], Callable[[], None]],
    ) -> None:
        """Compute with one batch of the documents while the next is read and prepared, and the last is written.

        `compute` takes a batch and what `prepare` makes of it, and returns the function that waits for the result and
        writes it.
        """
        dropped = duplicate_rows(self.workspace, self.duplicates)
        batches = kept_batches(documents, rows, columns, dropped)
        ahead = prefetched((batch, prepare(batch)) for batch in batches)
        total = self.documents.rows - len(dropped)
        with background_writer() as later:
            for batch, prepared in track_by_size("documents", ahead, total, lambda pair: pair[0].num_rows, part=(0, 1)):
                later(compute(batch, prepared))
