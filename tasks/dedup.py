"""Find exact duplicates across shards: the rows of each shard that hold a text of an earlier shard.

Ingest drops repeats within a shard and records each text's hash; here DuckDB compares the hashes of all shards, and
spills to disk where they do not fit in memory. The rows stay in the documents, so that shards can be scored and
embedded without waiting for each other, and are left out when the subset is selected.

Of equal texts, the first shard's is kept, in the order in which the shards came into the workspace, and those that came
together by name. With the order of the names alone, a new shard whose name comes first would take the copies of others,
whose selections would all be made anew. The order of work does not matter.
"""

import json
from collections.abc import Iterable
from typing import ClassVar

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fineweb_mask.models.schemas import DUPLICATES
from fineweb_mask.tasks.storage.atomic import atomic_write
from fineweb_mask.tasks.storage.mirror import read_text
from fineweb_mask.tasks.storage.scratch import pinned
from fineweb_mask.tasks.workspace.job import Dependencies, GroupJob, Stage, stage_task
from fineweb_mask.tasks.workspace.references import StageFile, digest
from fineweb_mask.tasks.workspace.stage_parquet import stage_file_writer
from fineweb_mask.tasks.workspace.workspace import Workspace


def in_order_of_arrival(workspace: Workspace, shards: Iterable[str]) -> list[str]:
    """Return the names of shards: those that are remembered first, in their order, then the others by name.

    Examples
    --------
    >>> from tempfile import mkdtemp
    >>> workspace = Workspace(mkdtemp())
    >>> remember_arrivals(workspace, ["b", "c"])
    >>> in_order_of_arrival(workspace, ["a", "b", "c"])
    ['b', 'c', 'a']
    """
    rank = {name: place for place, name in enumerate(_remembered(workspace))}
    return sorted(shards, key=lambda name: (rank.get(name, len(rank)), name))


def remember_arrivals(workspace: Workspace, shards: Iterable[str]) -> None:
    """Remember shards, in this order, after those that are remembered already."""
    before = _remembered(workspace)
    known = set(before)
    names = [*before, *(name for name in shards if name not in known)]
    if names != before:
        with atomic_write(workspace.arrivals) as partial:
            partial.write_text(json.dumps(names, indent=0) + "\n")


def _remembered(workspace: Workspace) -> list[str]:
    try:
        return [str(name) for name in json.loads(read_text(workspace.arrivals))]
    except (OSError, ValueError, TypeError):
        return []


class DedupJob(GroupJob):
    """Find the duplicates across all shards; of equal texts, the first of `documents` that has one keeps it."""

    stage: ClassVar[Stage] = Stage(
        "dedup", version=1, folders=("duplicates",), product=True, run_with=("select",), counts=("ingested", "eligible")
    )
    name: ClassVar[str] = "corpus"
    documents: list[StageFile]
    across_shards: bool
    memory_limit: str

    @property
    def shard_names(self) -> list[str]:
        """The names of the shards."""
        return [file.name for file in self.documents]

    def depends_on(self) -> Dependencies:
        """Return whether shards are compared, and the documents' fingerprints."""
        return Dependencies(
            settings=self.across_shards, inputs=[[file.name, file.fingerprint] for file in self.documents]
        )


@stage_task
def dedup(job: DedupJob) -> None:
    """Write, for every shard, the rows that repeat a text of an earlier shard."""
    found = _duplicates(job) if job.across_shards and len(job.documents) > 1 else {}
    key = job.key
    for index, shard in enumerate(job.documents):
        rows = found.get(index, np.empty(0, dtype=np.uint32))
        path = job.workspace.shard_path(job.folder, shard.name, key)
        with stage_file_writer(path, DUPLICATES, key) as writer:
            writer.write(pa.record_batch([pa.array(rows)], schema=DUPLICATES))
            writer.details = {"content": digest([shard.name, rows.tolist()])}


def _duplicates(job: DedupJob) -> dict[int, NDArray[np.uint32]]:
    """Return, by the shard's place in the order, the rows (uint32, ascending) that repeat an earlier shard's text."""
    spill = job.workspace.cache / "dedup-spill"
    spill.mkdir(parents=True, exist_ok=True)
    with duckdb.connect(config={"memory_limit": job.memory_limit, "temp_directory": str(spill)}) as connection:
        connection.execute("CREATE TABLE hashes (shard UINTEGER, row UINTEGER, content_hash BLOB)")
        for index, shard in enumerate(job.documents):
            with pinned():
                connection.execute(
                    "INSERT INTO hashes SELECT $shard, row, content_hash FROM read_parquet($path)",
                    {"shard": index, "path": str(job.workspace.resolve(shard))},
                )
        repeats = connection.execute(
            """
            SELECT shard, row
            FROM hashes JOIN (SELECT content_hash, min(shard) AS first FROM hashes GROUP BY content_hash)
            USING (content_hash)
            WHERE shard > first
            ORDER BY shard, row
            """
        ).fetchnumpy()
    shards, rows = np.asarray(repeats["shard"]), np.asarray(repeats["row"], dtype=np.uint32)
    found, starts = np.unique(shards, return_index=True)  # they are in order
    return dict(zip(found.tolist(), np.split(rows, starts[1:]), strict=False))
