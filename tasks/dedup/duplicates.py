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
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.schemas import DUPLICATES, DUPLICATES_OF_SHARDS
from fineweb_mask.tasks.dedup.lists import ListsJob, write_list, write_lists
from fineweb_mask.tasks.dedup.sorted_rows import read_range, runs
from fineweb_mask.tasks.workspace.job import Dependencies, Stage, stage_task
from fineweb_mask.tasks.workspace.references import StageFile, content_key, digest, stage_file_name

GATHERED_ROWS = 16_000_000
"""Documents of the shards whose duplicates are in memory at the same time, unless one shard has more."""


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
    summaries: ClassVar[str] = "repeats"
    listed_rows: ClassVar[str] = "duplicates"

    def depends_on(self) -> Dependencies:
        """Return the shards and the fingerprints of their hashes, in their order."""
        return Dependencies(settings=None, inputs=[[file.name, file.fingerprint] for file in self.sorted_rows])

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
    portions = list(runs([file.rows for file in job.sorted_rows], GATHERED_ROWS))
    found = (_duplicates(job, places) for places in track("shards", portions, part=(0, 1)))
    write_lists(job, DUPLICATES_OF_SHARDS, found, partial(_write, job))


def _duplicates(job: DedupJob, places: range) -> Iterator[tuple[str, NDArray[np.uint32]]]:
    """Yield the names and the duplicates of some neighbouring shards."""
    tables = [read_range(job.workspace, file, places.start, places.stop - 1) for file in job.compared()]
    found = pa.concat_tables(tables).sort_by([("shard", "ascending"), ("row", "ascending")])
    starts = np.searchsorted(found["shard"].to_numpy(), [*places, places.stop])
    for place, (start, stop) in zip(places, pairwise(starts), strict=True):
        yield job.shard_names[place], found["row"][start:stop].to_numpy()


def _write(job: DedupJob, duplicates: tuple[str, NDArray[np.uint32]]) -> StageFile:
    """Write a shard's duplicates, if it has any and they are not there yet."""
    shard, rows = duplicates
    content = content_of(shard, rows)
    found = duplicates_of(shard, len(rows), 0, content)
    if not found.path:
        return found
    size = write_list(job.workspace.root / found.path, pa.table([rows], schema=DUPLICATES), content, force=job.force)
    return found.model_copy(update={"bytes": size})
