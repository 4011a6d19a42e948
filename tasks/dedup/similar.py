"""Find the documents of a range of cells whose vectors are nearly those of an earlier document of the same cell.

Ranges need nothing of each other, and whether a corpus has one or many makes no difference to what is found.
"""

import math
from typing import ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.schemas import PAIRS
from fineweb_mask.models.settings.source import SemanticSettings
from fineweb_mask.tasks.dedup.pairs import document_numbers
from fineweb_mask.tasks.dedup.sorted_rows import read_range, write_sorted
from fineweb_mask.tasks.workspace.job import Dependencies, ShardJob, Stage, stage_task
from fineweb_mask.tasks.workspace.references import StageFile

RANGE_BYTES = 2**31
"""Most bytes of the vectors of a range, about, in float16."""


class SimilarJob(ShardJob):
    """Find the near-duplicates in one range of cells of a corpus; `similar_jobs` makes those of all ranges."""

    stage: ClassVar[Stage] = Stage(
        "similar", version=1, label="dedup", folders=("pairs",), interim=True, run_with=("select",)
    )
    cells: list[StageFile]  # in the order in which the shards came
    bucket: int  # from 0
    buckets: int  # a power of 2
    settings: SemanticSettings

    @property
    def name(self) -> str:
        """The range's number, and how many there are."""
        return f"{self.bucket:0{len(str(self.buckets - 1))}d}-of-{self.buckets}"

    @property
    def shard_names(self) -> list[str]:
        """No shard: what is found is of all shards."""
        return []

    def depends_on(self) -> Dependencies:
        """Return which range it is, the threshold, and the fingerprints of the shards' cells in their order."""
        return Dependencies(
            settings=[self.bucket, self.buckets, self.settings.threshold],
            inputs=[file.fingerprint for file in self.cells],
        )


def similar_jobs(root: str, cells: list[StageFile], dimensions: int, settings: SemanticSettings) -> list[SimilarJob]:
    """Return the jobs of all ranges of a corpus, whose number depends on that of its documents."""
    size = 2 * dimensions * sum(file.rows for file in cells)
    buckets = 2 ** max(0, math.ceil(math.log2(max(1, size) / RANGE_BYTES)))
    return [
        SimilarJob(root=root, cells=cells, bucket=bucket, buckets=buckets, settings=settings)
        for bucket in range(buckets)
    ]


@stage_task
def find_similar(job: SimilarJob) -> None:
    """Write every document of the range that is like an earlier one that is kept, and the first such."""
    from fineweb_mask.models.dedup.semantic import first_similar
    from fineweb_mask.models.embedding.arrow import vectors_of

    size = 2**64 // job.buckets
    first, end = job.bucket * size, (job.bucket + 1) * size
    keys, documents, vectors = list[NDArray[np.uint64]](), list[NDArray[np.uint64]](), list[NDArray[np.float16]]()
    for place, file in enumerate(track("shards", job.cells, part=(0, 0.5))):
        table = read_range(job.workspace, file, first, end)
        found = table["key"].to_numpy()
        start, stop = np.searchsorted(found, np.uint64(first)), np.searchsorted(found, np.uint64(end - 1), side="right")
        keys.append(found[start:stop])
        documents.append(np.asarray(document_numbers(place, table["row"].to_numpy()[start:stop])))
        values, _ = vectors_of(table.rename_columns(["key", "row", "embedding"]).slice(start, stop - start))
        vectors.append(np.array(values, dtype=np.float16))
    all_keys, all_documents, all_vectors = np.concatenate(keys), np.concatenate(documents), np.concatenate(vectors)
    order = np.lexsort((all_documents, all_keys))
    ends = np.flatnonzero(np.diff(all_keys[order])) + 1
    dropped, kept = [np.empty(0, np.uint64)], [np.empty(0, np.uint64)]
    for members in track("cells", np.split(order, ends) if len(order) else [], part=(0.5, 1)):
        units = all_vectors[members].astype(np.float32)
        units /= np.linalg.norm(units, axis=1, keepdims=True)  # of float16, a length is not quite 1
        similar = first_similar(units, job.settings.threshold)
        dropped.append(all_documents[members[similar.dropped]])
        kept.append(all_documents[members[similar.kept]])
    pairs = pa.table([np.concatenate(dropped), np.concatenate(kept)], schema=PAIRS).sort_by("document")
    write_sorted(job.output, PAIRS, job.key, pairs.combine_chunks().to_batches())
