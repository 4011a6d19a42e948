"""List the near-duplicates of every shard, with the document that is kept of each cluster.

Texts are sketched shard by shard (`signatures`), documents that share a band are found bucket by bucket (`pairs`), and
here the pairs are joined into clusters. Of a cluster the earliest document is kept, as of exact duplicates: that of the
shard that came first, then of the first row. Exact duplicates are in the lists, too: a shard has one list of all rows
that nothing is selected from.

A new shard sketches only itself. It drops documents of its own; one of an older shard only if a new document is like
two older ones that were in different clusters, which are then one.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fineweb_mask.models.dedup.minhash import first_of_clusters
from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.models.schemas import NEAR_DUPLICATES, NEAR_DUPLICATES_OF_SHARDS, PAIRS
from fineweb_mask.tasks.dedup.duplicates import WRITERS
from fineweb_mask.tasks.dedup.lists import ListsJob
from fineweb_mask.tasks.dedup.pairs import ROW_BITS
from fineweb_mask.tasks.storage.mirror import size_of
from fineweb_mask.tasks.storage.parquet import read_table
from fineweb_mask.tasks.workspace.job import Dependencies, Stage, stage_task
from fineweb_mask.tasks.workspace.references import StageFile, content_key, digest, stage_file_name
from fineweb_mask.tasks.workspace.shard_files import NEAR, duplicate_rows
from fineweb_mask.tasks.workspace.stage_parquet import read_fingerprint, stage_file_writer

ROW_MASK = np.uint64(2**ROW_BITS - 1)


class NearDedupJob(ListsJob):
    """List the near-duplicates of every shard of a corpus, and its exact ones."""

    stage: ClassVar[Stage] = Stage(
        "near_dedup", version=1, label="dedup", folders=("near_duplicates",), product=True, run_with=("select",)
    )
    name: ClassVar[str] = "corpus"
    summaries: ClassVar[str] = "pairs"
    signatures: list[StageFile]  # in the order in which the shards came
    exact: list[StageFile]  # the exact duplicates of each
    pairs: tuple[StageFile, ...] = ()  # of all buckets: needed to build the output, not to find it

    @property
    def shard_names(self) -> list[str]:
        """The names of the shards."""
        return [file.name for file in self.signatures]

    def depends_on(self) -> Dependencies:
        """Return the shards and the fingerprints of their signatures and of their duplicates, in their order."""
        found = zip(self.signatures, self.exact, strict=True)
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
    twin_shards: list[str]  # d
    twin_rows: NDArray[np.uint32]  # (d,)


@stage_task
def near_dedup(job: NearDedupJob) -> None:
    """Write the list of every shard that has near-duplicates, where it is not there yet, and then the summary.

    Raises
    ------
    WorkspaceError
        If what the buckets found is not given.
    """
    if not job.pairs:
        raise WorkspaceError(
            "the near-duplicates of a corpus are listed from what its buckets found, which is not there: run again"
        )
    tables = [read_table(job.workspace.resolve(file), schema=PAIRS) for file in job.pairs]
    pairs = [np.concatenate([table[name].to_numpy() for table in tables]) for name in PAIRS.names]
    dropped, kept = first_of_clusters(*pairs)
    starts = np.searchsorted(dropped >> np.uint64(ROW_BITS), np.arange(len(job.signatures) + 1, dtype=np.uint64))
    names = job.shard_names

    def near(place: int) -> _Near:
        of_shard = slice(starts[place], starts[place + 1])
        twins = [names[twin] for twin in (kept[of_shard] >> np.uint64(ROW_BITS)).tolist()]
        return _Near(_rows(dropped[of_shard]), twins, _rows(kept[of_shard]))

    with (
        stage_file_writer(job.summary, NEAR_DUPLICATES_OF_SHARDS, job.key) as summary,
        ThreadPoolExecutor(WRITERS) as pool,
    ):
        files = list(pool.map(lambda place: _write(job, job.exact[place], near(place)), range(len(names))))
        rows = [(file.name, file.rows, file.bytes, file.fingerprint, file.details[NEAR], file.path) for file in files]
        fields = NEAR_DUPLICATES_OF_SHARDS
        arrays = [pa.array([row[place] for row in rows], field.type) for place, field in enumerate(fields)]
        summary.write(pa.record_batch(arrays, schema=fields))


def _write(job: NearDedupJob, exact: StageFile, near: _Near) -> StageFile:
    """Write a shard's list, if it has near-duplicates and the list is not there yet; without any, it is the exact one.

    Its fingerprint is of the rows alone: which twin is kept makes no difference to a selection.
    """
    repeated = duplicate_rows(job.workspace, exact)
    is_near = ~np.isin(near.rows, repeated)
    rows = near.rows[is_near]
    if not len(rows):
        return exact.model_copy(update={"details": {NEAR: 0}})
    shards = [name for name, kept in zip(near.twin_shards, is_near, strict=True) if kept]
    twins = near.twin_rows[is_near]
    everything = np.concatenate([repeated, rows])
    order = np.argsort(everything)
    content = digest([exact.name, repeated.tolist(), rows.tolist(), shards, twins.tolist()])
    path = job.workspace.root / job.folder / stage_file_name(exact.name, content_key(content))
    if job.force or read_fingerprint(path) != content:
        none = [None] * len(repeated)
        columns = [pa.array(everything), pa.array([*none, *shards]), pa.array([*none, *twins.tolist()])]
        table = pa.table(columns, names=NEAR_DUPLICATES.names).cast(NEAR_DUPLICATES).take(pa.array(order))
        with stage_file_writer(path, NEAR_DUPLICATES, content_key(content)) as writer:
            for part in table.combine_chunks().to_batches():
                writer.write(part)
            writer.details = {"content": content}
    return StageFile(
        stage=job.stage.name,
        name=exact.name,
        path=job.workspace.relative(path),
        rows=len(everything),
        bytes=size_of(path) or 0,
        fingerprint=digest([exact.fingerprint, rows.tolist()]),
        details={NEAR: len(rows)},
    )


def _rows(documents: NDArray[np.uint64]) -> NDArray[np.uint32]:
    return (documents & ROW_MASK).astype(np.uint32)
