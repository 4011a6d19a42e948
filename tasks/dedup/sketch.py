"""Sketch the texts of one shard by MinHash, so that the sketches of all shards can be compared range by range.

The keys of the bands are written in their order, in small row groups: a reader of a range opens only those in it. Files
of other corpora, `ingest.against`, are sketched as shards are, and read where they are.
"""

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fineweb_mask.models.dedup.minhash import RENSA_ALGORITHM, SEED, Sketch, band_keys
from fineweb_mask.models.runtime.progress import track_by_size
from fineweb_mask.models.schemas import SIGNATURES
from fineweb_mask.models.settings import SourceSettings
from fineweb_mask.tasks.source.columns import BYTES_OF_ROW
from fineweb_mask.tasks.source.discovery import SourceShard
from fineweb_mask.tasks.source.reader import ShardReader
from fineweb_mask.tasks.storage.parquet import VerifiedFile
from fineweb_mask.tasks.workspace.job import Dependencies, Stage, StageJob, stage_task
from fineweb_mask.tasks.workspace.references import StageFile, digest
from fineweb_mask.tasks.workspace.stage_parquet import ROW_GROUP_ROWS, stage_file_writer
from fineweb_mask.tasks.workspace.workspace import Workspace

TEXTS_AT_ONCE = 1_000

Documents = StageFile | SourceShard
"""The documents of a shard, or a file of another corpus."""


class SketchJob(StageJob):
    """Sketch the texts of one shard."""

    stage: ClassVar[Stage] = Stage("sketch", version=1, label="dedup", folders=("signatures",))
    documents: Documents
    sketch: Sketch

    @property
    def name(self) -> str:
        """The name of the shard."""
        return name_of(self.documents)

    def depends_on(self) -> Dependencies:
        """Return how texts are sketched, and the fingerprint of the documents."""
        settings: Any = [list(self.sketch), SEED, RENSA_ALGORITHM, SIGNATURES.names]
        return Dependencies(settings=settings, inputs=[self.name, self.documents.fingerprint])


def name_of(documents: Documents) -> str:
    """Return the name of a shard; that of a file of another corpus is one that no shard of this one has."""
    if isinstance(documents, StageFile):
        return documents.name
    return f"against-{digest(documents.url)[:8]}/{documents.name}"


def column_of(workspace: Workspace, documents: Documents, column: str) -> Iterator[pa.RecordBatch]:
    """Yield the `row` and a column of documents, text or URL; in another corpus, an empty one where there is none.

    Raises
    ------
    BadShardError
        If a file of another corpus is damaged, or has no column `text`.
    """
    if isinstance(documents, StageFile):
        with VerifiedFile(workspace.resolve(documents)) as file:
            yield from file.iter_batches(TEXTS_AT_ONCE, columns=["row", column])
        return
    row = 0
    for batch, _ in ShardReader(documents, SourceSettings(path=documents.url, extra_columns=[])).batches():
        rows = pa.array(range(row, row + batch.num_rows), pa.uint32())
        yield pa.record_batch([rows, pc.fill_null(batch[column], "")], names=["row", column])
        row += batch.num_rows


@stage_task
def sketch(job: SketchJob) -> None:
    """Write the key of each band of every document, and the document's row, in the order of the keys.

    A document with fewer words than a shingle has none, and so no near-duplicates.

    Raises
    ------
    SettingsError
        If the package that makes signatures is not installed.
    """
    documents, found = job.documents, [SIGNATURES.empty_table()]
    total = documents.rows if isinstance(documents, StageFile) else documents.bytes // BYTES_OF_ROW
    batches = column_of(job.workspace, documents, "text")
    for batch in track_by_size("documents", batches, total, lambda batch: batch.num_rows, part=(0, 1)):
        bands = band_keys(batch["text"], job.sketch)
        rows = np.repeat(batch["row"].to_numpy()[bands.rows], bands.keys.shape[1])
        found.append(pa.table([bands.keys.ravel(), rows, bands.following.ravel()], schema=SIGNATURES))
    in_order = pa.concat_tables(found).sort_by([("key", "ascending"), ("row", "ascending")]).combine_chunks()
    with stage_file_writer(job.output, SIGNATURES, job.key, use_dictionary=False) as writer:
        for batch in in_order.to_batches(max_chunksize=ROW_GROUP_ROWS):
            writer.write(batch)
