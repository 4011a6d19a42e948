"""Compute with the documents of a shard that are no duplicates: from the others nothing is selected.

While one batch is computed with, the next is read and prepared and the last is written. Threads suffice: tokeniser,
GPU, compression and disk all release Python's global lock.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import pyarrow as pa

from fineweb_mask.models.runtime.progress import track_by_size
from fineweb_mask.tasks.storage.parquet import VerifiedFile
from fineweb_mask.tasks.workspace.job import StageJob
from fineweb_mask.tasks.workspace.references import StageFile
from fineweb_mask.tasks.workspace.stage_parquet import duplicate_rows, kept_batches

Prepared = TypeVar("Prepared")
Item = TypeVar("Item")


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
        """Compute with the documents batch by batch.

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


def prefetched(items: Iterable[Item]) -> Iterator[Item]:
    """Yield the items, computing the next one in a thread while the caller uses the current one."""
    remaining = iter(items)
    with ThreadPoolExecutor(1) as thread:
        pending = thread.submit(next, remaining, None)
        while (item := pending.result()) is not None:
            pending = thread.submit(next, remaining, None)
            yield item


@contextmanager
def background_writer() -> Iterator[Callable[[Callable[[], object]], None]]:
    """Yield a function that runs its argument in a thread, in order, one at a time.

    A call waits for the previous one to finish. An error is raised by the next call, or at the end of the block.
    """
    with ThreadPoolExecutor(1) as thread:
        last: list[Future[object]] = []

        def run(work: Callable[[], object]) -> None:
            if last:
                last.pop().result()
            last.append(thread.submit(work))

        yield run
        if last:
            last.pop().result()
