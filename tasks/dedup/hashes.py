"""Sort the hashes of one shard's texts, so that those of all shards can be compared range by range."""

from typing import ClassVar

import numpy as np
import pyarrow as pa

from fineweb_mask.models.documents import hash_halves
from fineweb_mask.models.schemas import HASHES
from fineweb_mask.tasks.dedup.sorted_rows import write_sorted
from fineweb_mask.tasks.workspace.job import Dependencies, ShardJob, Stage, stage_task
from fineweb_mask.tasks.workspace.references import StageFile
from fineweb_mask.tasks.workspace.stage_parquet import open_parquet


class HashJob(ShardJob):
    """Sort the hashes of one shard's documents."""

    stage: ClassVar[Stage] = Stage("hash", version=1, label="dedup", folders=("hashes",), run_with=("select",))
    documents: StageFile

    @property
    def name(self) -> str:
        """The name of the shard."""
        return self.documents.name

    def depends_on(self) -> Dependencies:
        """Return the documents' fingerprint."""
        return Dependencies(settings=None, inputs=[self.documents.fingerprint])


@stage_task
def sort_hashes(job: HashJob) -> None:
    """Write the hash and the row of every document, in the order of the hashes; no text is read."""
    with open_parquet(job.workspace.root / job.documents.path) as documents:
        table = documents.read(columns=HASHES.names)
    high, low = hash_halves(table["content_hash"].combine_chunks())
    table = table.select(HASHES.names).cast(HASHES).take(pa.array(np.lexsort((low, high))))
    write_sorted(job.output, HASHES, job.key, table.combine_chunks().to_batches())
