"""Cluster the vectors of a corpus by k-means, so that near-duplicates are looked for in one cluster at a time.

The centres are fitted on the shards of the corpus's sample. Each shard's vectors are written in the order of their
clusters: what compares a range of clusters reads that part of every shard.
"""

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fineweb_mask.models.runtime.progress import track_by_size
from fineweb_mask.models.schemas import clustered_schema
from fineweb_mask.models.settings.source import SemanticSettings
from fineweb_mask.tasks.storage.atomic import atomic_write
from fineweb_mask.tasks.storage.parquet import VerifiedFile
from fineweb_mask.tasks.workspace.job import Dependencies, FolderJob, Stage, stage_task
from fineweb_mask.tasks.workspace.manifest import write_manifest
from fineweb_mask.tasks.workspace.references import StageFile
from fineweb_mask.tasks.workspace.workspace import Workspace

BATCH_ROWS = 20_000
SAMPLE = 200
"""Documents of the sample for each cluster; with fewer, there are fewer clusters."""
MOST_SAMPLED = 400_000
CENTRES = "centres.npy"


class CentresJob(FolderJob):
    """Fit the centres of the clusters, and keep them when the corpus grows."""

    stage: ClassVar[Stage] = Stage("centres", version=1, label="dedup", folders=("fitted/centres",), product=True)
    name: ClassVar[str] = "centres"
    embeddings: list[StageFile]  # of the shards of the sample
    model: str  # fingerprint of what made the vectors
    settings: SemanticSettings

    def depends_on(self) -> Dependencies:
        """Return how many clusters there are, and the model; not the sample, so that new shards change nothing."""
        return Dependencies(settings=self.settings.digested(include={"cells", "seed"}), inputs=self.model)

    @property
    def path(self) -> Path:
        """The centres, (c, d) float32."""
        return self.folder / CENTRES


@stage_task
def fit_cluster_centres(job: CentresJob) -> None:
    """Write the centres."""
    from fineweb_mask.models.dedup.semantic import cluster_centres

    rows = sum(file.rows for file in job.embeddings)
    step = max(1, -(-rows // MOST_SAMPLED))
    parts = [vectors[::step] for file in job.embeddings for _, vectors in _batches(job.workspace, file)]
    vectors = np.concatenate(parts)
    centres = cluster_centres(vectors, max(1, min(job.settings.cells, len(vectors) // SAMPLE)))
    with atomic_write(job.path) as partial, partial.open("wb") as stream:
        np.save(stream, centres)
    write_manifest(job.manifest_path, job.key, [job.path], {"rows": len(centres)})


@lru_cache(maxsize=2)
def _centres(path: Path, fingerprint: str) -> NDArray[np.float32]:  # noqa: ARG001 - others have another
    centres: NDArray[np.float32] = np.load(path)
    return centres


def clustered(workspace: Workspace, embeddings: StageFile, centres: StageFile) -> pa.Table:
    """Return the key of each document's cluster, its row and its unit vector, in the order of the keys.

    Documents without a vector are left out. Keys are numbers of clusters, spread over all numbers of 64 bits.
    """
    from fineweb_mask.models.dedup.semantic import clusters_of

    found = _centres(workspace.resolve(centres).parent / CENTRES, centres.fingerprint)
    numbers, vectors, clusters = [], [], []
    batches = track_by_size(
        "documents", _batches(workspace, embeddings), embeddings.rows, lambda pair: len(pair[0]), part=(0, 1)
    )
    for rows, units in batches:
        numbers.append(rows)
        vectors.append(units.astype(np.float16))
        clusters.append(clusters_of(units, found).astype(np.uint64))
    schema = clustered_schema(found.shape[1])
    keys = np.concatenate(clusters or [np.empty(0, np.uint64)]) * np.uint64((2**64 - 1) // len(found))
    rows = np.concatenate(numbers or [np.empty(0, np.uint32)])
    order = np.lexsort((rows, keys))
    values = np.concatenate(vectors or [np.empty((0, found.shape[1]), np.float16)])[order]
    lists = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), type=schema.field("vector").type)
    return pa.table([pa.array(keys[order]), pa.array(rows[order]), lists], schema=schema)


def _batches(workspace: Workspace, file: StageFile) -> Iterator[tuple[NDArray[np.uint32], NDArray[np.float32]]]:
    """Yield the rows and unit vectors of a shard in batches, without documents that have none."""
    from fineweb_mask.models.analysis.vectors import unit_rows
    from fineweb_mask.models.embedding.arrow import vectors_of

    with VerifiedFile(workspace.resolve(file)) as opened:
        for batch in opened.iter_batches(BATCH_ROWS):
            table = pa.table(batch)
            vectors, present = vectors_of(table)
            yield table["row"].to_numpy()[present], unit_rows(vectors[present])
