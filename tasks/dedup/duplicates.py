"""List the duplicates of every shard: the rows whose text an earlier shard holds.

Ingest drops repeats within a shard and records each text's hash. Then every shard's hashes are sorted (`hashes`), the
shards are compared in buckets (`repeats`), and here what the buckets found is written shard by shard. The duplicates
stay in the documents, so that shards can be scored and embedded without waiting for each other, and are left out when
the subset is selected.

Of equal texts, that of the shard that came into the workspace first is kept; of shards that came together, that of the
first name (`arrivals`). The order of work does not matter.

A file's name tells what is in it, and a shard without duplicates has no file: when a shard is added, no other shard's
file is written again, and no selection is made again.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.schemas import DUPLICATES, DUPLICATES_OF_SHARDS
from fineweb_mask.tasks.dedup.lists import ListsJob
from fineweb_mask.tasks.dedup.sorted_rows import read_range, runs
from fineweb_mask.tasks.storage.mirror import size_of
from fineweb_mask.tasks.workspace.job import Dependencies, Stage, stage_task
from fineweb_mask.tasks.workspace.references import StageFile, content_key, digest, stage_file_name
from fineweb_mask.tasks.workspace.stage_parquet import read_fingerprint, stage_file_writer
from fineweb_mask.tasks.workspace.workspace import Workspace

GATHERED_ROWS = 16_000_000
"""Documents of the shards whose duplicates are in memory at the same time, unless one shard has more."""

WRITERS = 32
"""Files that are written at the same time: at a URL, most of the time is spent waiting."""


class DedupJob(ListsJob):
    """List the duplicates of every shard of a corpus."""

    stage: ClassVar[Stage] = Stage(
        "dedup",
        version=2,
        folders=("duplicates",),
        product=True,
        run_with=("select",),
        counts=("ingested", "eligible"),
    )
    name: ClassVar[str] = "corpus"
    summaries: ClassVar[str] = "repeats"
    hashes: list[StageFile]  # in the order in which the shards came
    repeats: tuple[StageFile, ...] = ()  # of all buckets: needed to build the output, not to find it

    @property
    def shard_names(self) -> list[str]:
        """The names of the shards."""
        return [file.name for file in self.hashes]

    def depends_on(self) -> Dependencies:
        """Return the shards and the fingerprints of their hashes, in their order."""
        return Dependencies(settings=None, inputs=[[file.name, file.fingerprint] for file in self.hashes])

    def listed(self, row: dict[str, Any]) -> StageFile:
        """Return the reference to a shard's duplicates, from its row of the summary."""
        return duplicates_of(row["shard"], row["rows"], row["bytes"], row["content"])


def duplicates_of(shard: str, rows: int, size: int, content: str) -> StageFile:
    """Return the reference to a shard's duplicates, whose file has `size` bytes; without any, to no file."""
    path = f"{DedupJob.stage.folders[0]}/{stage_file_name(shard, content_key(content))}" if rows else ""
    return StageFile(
        stage=DedupJob.stage.name, name=shard, path=path, rows=rows, bytes=size, fingerprint=content, cached=True
    )


def no_duplicates(shard: str) -> StageFile:
    """Return the reference to the duplicates of a shard that has none, for which nothing is read or written.

    Examples
    --------
    >>> no_duplicates("a").rows, no_duplicates("a").path
    (0, '')
    """
    return duplicates_of(shard, 0, 0, content_of(shard, np.empty(0, dtype=np.uint32)))


def content_of(shard: str, rows: NDArray[np.uint32]) -> str:
    """Return the digest that stands for a shard's duplicates in the keys of jobs that read them."""
    return digest([shard, rows.tolist()])


@stage_task
def dedup(job: DedupJob) -> None:
    """Write the duplicates of every shard, where they are not there yet, and then the summary.

    Raises
    ------
    WorkspaceError
        If what the buckets found is not given.
    """
    if not job.repeats:
        raise WorkspaceError(
            "the duplicates of a corpus are listed from what its buckets found, which is not there: run again"
        )
    with (
        stage_file_writer(job.summary, DUPLICATES_OF_SHARDS, job.key) as summary,
        ThreadPoolExecutor(WRITERS) as pool,
    ):
        for places in track("shards", list(runs([file.rows for file in job.hashes], GATHERED_ROWS)), part=(0, 1)):
            found = zip(job.shard_names[places.start : places.stop], _rows_of(job, places), strict=True)
            files = list(pool.map(partial(_write, job.workspace, force=job.force), *zip(*found, strict=True)))
            columns = [[getattr(file, name) for file in files] for name in ("name", "rows", "bytes", "fingerprint")]
            summary.write(pa.record_batch(columns, schema=DUPLICATES_OF_SHARDS))


def _rows_of(job: DedupJob, places: range) -> Iterator[NDArray[np.uint32]]:
    """Yield the duplicates of each of some neighbouring shards."""
    tables = [read_range(job.workspace, file, places.start, places.stop) for file in job.repeats]
    shards, rows = (np.concatenate([table[name].to_numpy() for table in tables]) for name in ("shard", "row"))
    order = np.lexsort((rows, shards))
    shards, rows = shards[order], rows[order]
    starts = np.searchsorted(shards, [*places, places.stop])
    for start, stop in pairwise(starts):
        yield rows[start:stop]


def _write(workspace: Workspace, shard: str, rows: NDArray[np.uint32], *, force: bool) -> StageFile:
    """Write a shard's duplicates, if it has any and they are not there yet."""
    content = content_of(shard, rows)
    found = duplicates_of(shard, len(rows), 0, content)
    if not found.path:
        return found
    path = workspace.root / found.path
    if force or read_fingerprint(path) != content:
        with stage_file_writer(path, DUPLICATES, content_key(content)) as writer:
            writer.write(pa.record_batch([pa.array(rows)], schema=DUPLICATES))
            writer.details = {"content": content}
    return found.model_copy(update={"bytes": size_of(path)})
