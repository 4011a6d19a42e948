"""Copy the texts of a file of another corpus, `ingest.against`, so that near-duplicates of them are found."""

from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from fineweb_mask.models.schemas import REFERENCES
from fineweb_mask.models.settings import SourceSettings
from fineweb_mask.tasks.source.discovery import SourceShard
from fineweb_mask.tasks.source.reader import ShardReader
from fineweb_mask.tasks.workspace.job import Dependencies, ShardJob, Stage, stage_task
from fineweb_mask.tasks.workspace.references import digest
from fineweb_mask.tasks.workspace.stage_parquet import stage_file_writer


class ReferenceJob(ShardJob):
    """Copy the texts of one file."""

    stage: ClassVar[Stage] = Stage("references", version=1, label="dedup", folders=("references",))
    file: SourceShard

    @property
    def name(self) -> str:
        """The name of the file, which no shard of this corpus has."""
        return f"against-{digest(self.file.url)[:8]}/{self.file.name}"

    def depends_on(self) -> Dependencies:
        """Return the fingerprint of the file."""
        return Dependencies(settings=None, inputs=[self.file.relative, self.file.fingerprint])


@stage_task
def copy_reference(job: ReferenceJob) -> None:
    """Write the text and the URL of every row.

    Raises
    ------
    BadShardError
        If the file is damaged, or has no column `text`.
    """
    row = 0
    with stage_file_writer(job.output, REFERENCES, job.key) as writer:
        for batch, _ in ShardReader(job.file, SourceSettings(path=job.file.url, extra_columns=[])).batches():
            rows = pa.array(range(row, row + batch.num_rows), pa.uint32())
            columns = [rows, pc.fill_null(batch["text"], ""), pc.fill_null(batch["url"], "")]
            writer.write(pa.record_batch(columns, schema=REFERENCES))
            row += batch.num_rows
