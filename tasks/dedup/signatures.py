"""Sketch the texts of one shard by MinHash, and sort the bands of their signatures, to be compared range by range."""

from typing import ClassVar

import numpy as np
import pyarrow as pa

from fineweb_mask.models.dedup.minhash import RENSA_ALGORITHM, band_keys
from fineweb_mask.models.runtime.progress import track_by_size
from fineweb_mask.models.schemas import SIGNATURES
from fineweb_mask.models.settings.source import MinHashSettings
from fineweb_mask.tasks.dedup.sorted_rows import write_sorted
from fineweb_mask.tasks.source.texts import with_texts
from fineweb_mask.tasks.storage.parquet import VerifiedFile
from fineweb_mask.tasks.workspace.job import Dependencies, ShardJob, Stage, stage_task
from fineweb_mask.tasks.workspace.references import StageFile

BATCH_ROWS = 1_000
GROUP_KEYS = 131_072
"""Keys in a row group: a shard of 400,000 documents has 43 of them."""


class SignatureJob(ShardJob):
    """Sort the bands of the signatures of one shard's documents."""

    stage: ClassVar[Stage] = Stage(
        "signatures", version=1, label="dedup", folders=("signatures",), run_with=("select",)
    )
    documents: StageFile
    settings: MinHashSettings

    @property
    def name(self) -> str:
        """The name of the shard."""
        return self.documents.name

    def depends_on(self) -> Dependencies:
        """Return how texts are sketched, and the documents' fingerprint."""
        settings = [self.settings.digested(), RENSA_ALGORITHM]
        return Dependencies(settings=settings, inputs=[self.documents.fingerprint])


@stage_task
def sketch(job: SignatureJob) -> None:
    """Write the key of each band of every document and the document's row, in the order of the keys.

    A document with fewer words than a shingle has none: it is no near-duplicate of any other.

    Raises
    ------
    SettingsError
        If the package that makes signatures is not installed.
    """
    keys, rows = [np.empty(0, dtype=np.uint64)], [np.empty(0, dtype=np.uint32)]
    with with_texts(job.workspace, job.documents) as path, VerifiedFile(path) as documents:
        batches = documents.iter_batches(BATCH_ROWS, columns=["row", "text"])
        for batch in track_by_size("documents", batches, job.documents.rows, lambda batch: batch.num_rows, part=(0, 1)):
            bands = band_keys(batch["text"], job.settings)
            keys.append(bands.keys.ravel())
            rows.append(np.repeat(batch["row"].to_numpy()[bands.rows], bands.keys.shape[1]))
    all_keys, all_rows = np.concatenate(keys), np.concatenate(rows)
    order = np.lexsort((all_rows, all_keys))
    batch = pa.record_batch([all_keys[order], all_rows[order].astype(np.uint32)], schema=SIGNATURES)
    write_sorted(job.output, SIGNATURES, job.key, [batch], GROUP_KEYS)
