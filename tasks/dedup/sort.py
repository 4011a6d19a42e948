"""Sort the rows of one shard by what documents are compared by, so that all shards can be compared range by range.

For exact duplicates this is the hash of a text, for near-duplicates a band of its signature (`signatures`) or the
k-means cluster of its vector (`k_means`).
"""

from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa

from fineweb_mask.models.dedup.minhash import RENSA_ALGORITHM
from fineweb_mask.models.documents import hash_halves
from fineweb_mask.models.schemas import HASHES
from fineweb_mask.models.settings.source import MinHashSettings, SemanticSettings
from fineweb_mask.tasks.dedup.k_means import clustered
from fineweb_mask.tasks.dedup.signatures import GROUP_KEYS, sketched
from fineweb_mask.tasks.dedup.sorted_rows import write_sorted
from fineweb_mask.tasks.workspace.job import Dependencies, ShardJob, Stage, stage_task
from fineweb_mask.tasks.workspace.references import StageFile
from fineweb_mask.tasks.workspace.stage_parquet import open_parquet
from fineweb_mask.tasks.workspace.workspace import Workspace


class SortJob(ShardJob):
    """Sort the rows of one shard."""

    stage: ClassVar[Stage] = Stage(
        "sort", version=1, label="dedup", folders=("hashes", "signatures"), run_with=("select",)
    )
    by: Literal["hash", "signatures", "cells"]
    file: StageFile  # the documents; for clusters, the embeddings
    minhash: MinHashSettings | None = None  # for signatures
    semantic: SemanticSettings | None = None  # for clusters, with their centres
    centres: StageFile | None = None

    @property
    def kind(self) -> str:
        """What the rows are sorted by."""
        return self.by

    @property
    def folder(self) -> str:
        """The folder of the sorted rows, in the workspace."""
        return "hashes" if self.by == "hash" else "signatures"

    @property
    def name(self) -> str:
        """The name of the shard."""
        return self.file.name

    def depends_on(self) -> Dependencies:
        """Return how texts are sketched, or the threshold for vectors, and the fingerprints of what is read."""
        settings: Any = None
        if self.minhash is not None:
            settings = [self.minhash.digested(), RENSA_ALGORITHM]
        elif self.semantic is not None:
            settings = self.semantic.threshold  # on which what is made of this depends
        centres = [] if self.centres is None else [self.centres.fingerprint]
        return Dependencies(settings=settings, inputs=[self.file.fingerprint, *centres])


@stage_task
def sort_rows(job: SortJob) -> None:
    """Write what documents are compared by, and their rows, in its order.

    Raises
    ------
    SettingsError
        If the package that makes signatures is not installed.
    """
    group_rows = None
    if job.minhash is not None:
        rows, group_rows = sketched(job.workspace, job.file, job.minhash), GROUP_KEYS
    elif job.centres is not None:
        rows = clustered(job.workspace, job.file, job.centres)
    else:
        rows = _hashed(job.workspace, job.file)
    write_sorted(job.output, rows.schema, job.key, rows.combine_chunks().to_batches(), group_rows)


def _hashed(workspace: Workspace, documents: StageFile) -> pa.Table:
    """Return the hash and the row of every document, in the order of the hashes; no text is read."""
    with open_parquet(workspace.root / documents.path) as opened:
        table = opened.read(columns=HASHES.names).select(HASHES.names).cast(HASHES)
    high, low = hash_halves(table["content_hash"].combine_chunks())
    return table.take(pa.array(np.lexsort((low, high))))
