"""List the near-duplicates of every shard, with the document that is kept of each cluster.

Texts are sketched shard by shard (`signatures`), documents that share a band are found bucket by bucket (`pairs`), and
here the pairs are joined into clusters. Of a cluster the earliest document is kept, as of exact duplicates: that of the
shard that came first, then of the first row. Exact duplicates are in the lists, too: a shard has one list of all rows
that nothing is selected from.

A new shard sketches only itself. It drops its own documents, and one of an older shard only if a new document is like
two older ones that were in different clusters, which are then one.
"""

from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fineweb_mask.models.dedup.minhash import first_of_clusters
from fineweb_mask.models.schemas import NEAR_DUPLICATES, NEAR_DUPLICATES_OF_SHARDS, PAIRS
from fineweb_mask.tasks.dedup.buckets import ROW_BITS
from fineweb_mask.tasks.dedup.lists import ListsJob, write_list, write_lists
from fineweb_mask.tasks.storage.parquet import read_table
from fineweb_mask.tasks.workspace.job import Dependencies, Stage, stage_task
from fineweb_mask.tasks.workspace.references import StageFile, content_key, digest, stage_file_name
from fineweb_mask.tasks.workspace.shard_files import NEAR, duplicate_rows

ROW_MASK = np.uint64(2**ROW_BITS - 1)


class NearDedupJob(ListsJob):
    """List the near-duplicates of every shard of a corpus, and its exact ones."""

    stage: ClassVar[Stage] = Stage(
        "near_dedup", version=1, label="dedup", folders=("near_duplicates",), product=True, run_with=("select",)
    )
    summaries: ClassVar[str] = "pairs"
    listed_rows: ClassVar[str] = "near-duplicates"
    exact: list[StageFile]  # the exact duplicates of each shard

    def depends_on(self) -> Dependencies:
        """Return the shards and the fingerprints of their sorted rows and of their duplicates, in their order."""
        found = zip(self.sorted_rows, self.exact, strict=True)
        return Dependencies(
            settings=None, inputs=[[file.name, file.fingerprint, exact.fingerprint] for file, exact in found]
        )

    def listed(self, row: dict[str, Any]) -> StageFile:
        """Return the reference to a shard's list, from its row of the summary."""
        return StageFile(
            stage=self.stage.name,
            name=row["shard"],
            path=row["path"],
            rows=row["rows"],
            bytes=row["bytes"],
            fingerprint=row["content"],
            details={NEAR: row["near"]},
            cached=True,
        )


class _Near(NamedTuple):
    """The near-duplicates of one shard."""

    rows: NDArray[np.uint32]  # (d,) ascending
    kept_shards: list[str]  # d, of the copies that are kept
    kept_rows: NDArray[np.uint32]  # (d,)


@stage_task
def near_dedup(job: NearDedupJob) -> None:
    """Write the list of every shard that has near-duplicates, where it is not there yet, and then the summary.

    Raises
    ------
    WorkspaceError
        If what the buckets found is not given.
    """
    pairs = pa.concat_tables(read_table(job.workspace.resolve(file), schema=PAIRS) for file in job.compared())
    dropped, kept = first_of_clusters(*(pairs[name].to_numpy() for name in PAIRS.names))
    names = job.shard_names
    starts = np.searchsorted(dropped >> np.uint64(ROW_BITS), np.arange(len(names) + 1, dtype=np.uint64))

    def write(place: int) -> StageFile:
        of_shard = slice(starts[place], starts[place + 1])
        shards = [names[shard] for shard in (kept[of_shard] >> np.uint64(ROW_BITS)).tolist()]
        return _write(job, job.exact[place], _Near(_rows(dropped[of_shard]), shards, _rows(kept[of_shard])))

    write_lists(job, NEAR_DUPLICATES_OF_SHARDS, [range(len(names))], write)


def _write(job: NearDedupJob, exact: StageFile, near: _Near) -> StageFile:
    """Write a shard's list, if it has near-duplicates and the list is not there yet; without any, it is the exact one.

    Its fingerprint is of the rows alone: which copy is kept makes no difference to a selection.
    """
    repeated = duplicate_rows(job.workspace, exact)
    is_near = ~np.isin(near.rows, repeated)
    rows = near.rows[is_near]
    if not len(rows):
        return exact.model_copy(update={"details": {NEAR: 0}})
    shards = [name for name, is_listed in zip(near.kept_shards, is_near, strict=True) if is_listed]
    kept = near.kept_rows[is_near].tolist()
    content = digest([exact.name, repeated.tolist(), rows.tolist(), shards, kept])
    path = job.workspace.root / job.folder / stage_file_name(exact.name, content_key(content))
    everything, none = np.concatenate([repeated, rows]), [None] * len(repeated)
    columns = [pa.array(everything), pa.array([*none, *shards]), pa.array([*none, *kept])]
    table = pa.table(columns, names=NEAR_DUPLICATES.names).cast(NEAR_DUPLICATES).sort_by("row")
    size = write_list(path, table, content, force=job.force)
    return StageFile(
        stage=job.stage.name,
        name=exact.name,
        path=job.workspace.relative(path),
        rows=len(everything),
        bytes=size,
        fingerprint=digest([exact.fingerprint, rows.tolist()]),
        details={NEAR: len(rows)},
    )


def _rows(documents: NDArray[np.uint64]) -> NDArray[np.uint32]:
    return (documents & ROW_MASK).astype(np.uint32)
