"""Find the documents of one bucket, which is a range of the hashes, whose text an earlier shard holds.

A bucket reads its range of the hashes of every shard, and DuckDB compares them; what does not fit in memory is spilled
to disk. The buckets of a corpus need nothing of each other: they are found in any order, by any machine, and a run that
was killed goes on with those that are left. Whether a corpus has one bucket or many makes no difference to the result.
"""

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import ClassVar

import duckdb
import numpy as np
import pyarrow as pa

from fineweb_mask.models.documents import hash_halves
from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.schemas import REPEATS
from fineweb_mask.tasks.dedup.database import database, own_turn
from fineweb_mask.tasks.dedup.sorted_rows import ROW_GROUP_ROWS, read_range, runs, write_sorted
from fineweb_mask.tasks.workspace.job import Dependencies, ShardJob, Stage, stage_task
from fineweb_mask.tasks.workspace.references import StageFile

BUCKET_DOCUMENTS = 50_000_000
"""Most documents of a bucket, about: the table that DuckDB makes of them has 24 bytes for each."""

READ_ROWS = 2_000_000
"""Most hashes that are read before they are given to DuckDB, unless one shard has more."""

READERS = 16
"""Files that are read at the same time: at a URL, most of the time is spent waiting."""

EARLIER = """
    SELECT shard, row
    FROM hashes
    JOIN (SELECT high, low, min(shard) AS first FROM hashes GROUP BY high, low HAVING count(*) > 1) USING (high, low)
    WHERE shard > first
    ORDER BY shard, row
    """


class RepeatsJob(ShardJob):
    """Find the repeats in one bucket of a corpus; `repeats_jobs` makes those of all buckets."""

    stage: ClassVar[Stage] = Stage(
        "repeats", version=1, label="dedup", folders=("repeats",), interim=True, run_with=("select",)
    )
    hashes: list[StageFile]  # in the order in which the shards came
    bucket: int  # from 0
    buckets: int  # a power of 2
    memory_limit: str

    @property
    def name(self) -> str:
        """The bucket's number, and how many there are."""
        return f"{self.bucket:0{len(str(self.buckets - 1))}d}-of-{self.buckets}"

    @property
    def shard_names(self) -> list[str]:
        """No shard: what is found is of all shards."""
        return []

    def depends_on(self) -> Dependencies:
        """Return which bucket it is, and the fingerprints of the hashes in the order of the shards."""
        return Dependencies(settings=[self.bucket, self.buckets], inputs=[file.fingerprint for file in self.hashes])

    @property
    def ends(self) -> tuple[int, int]:
        """The least first half of a hash in the bucket, and the least beyond it: 0 to 2**64."""
        size = 2**64 // self.buckets
        return self.bucket * size, (self.bucket + 1) * size


def repeats_jobs(root: str, hashes: list[StageFile], memory_limit: str) -> list[RepeatsJob]:
    """Return the jobs of all buckets of a corpus, whose number depends on that of its documents."""
    documents = sum(file.rows for file in hashes)
    buckets = 2 ** max(0, math.ceil(math.log2(max(1, documents) / BUCKET_DOCUMENTS)))
    return [
        RepeatsJob(root=root, hashes=hashes, bucket=bucket, buckets=buckets, memory_limit=memory_limit)
        for bucket in range(buckets)
    ]


@stage_task
def find_repeats(job: RepeatsJob) -> None:
    """Write the place of the shard and the row of every document of the bucket that an earlier shard holds.

    Raises
    ------
    WorkspaceError
        If the memory limit is too little for DuckDB.
    """
    with own_turn(), _database(job) as connection:
        connection.execute("CREATE TABLE hashes (high UBIGINT, low UBIGINT, shard UINTEGER, row UINTEGER)")
        for hashes in _read(job):
            connection.from_arrow(hashes).insert_into("hashes")
        repeats = connection.sql(EARLIER).to_arrow_reader(ROW_GROUP_ROWS)
        write_sorted(job.output, REPEATS, job.key, (batch.cast(REPEATS) for batch in repeats))


def _database(job: RepeatsJob) -> AbstractContextManager[duckdb.DuckDBPyConnection]:
    return database(job.workspace, job.memory_limit)


def _read(job: RepeatsJob) -> Iterator[pa.Table]:
    """Yield the halves of the bucket's hashes, with the places of their shards and their rows, shards by shards."""
    portions = list(runs([file.rows / job.buckets for file in job.hashes], READ_ROWS))
    with ThreadPoolExecutor(READERS) as pool:
        for places in track("portions of the hashes", portions, part=(0, 0.5)):
            yield pa.concat_tables(pool.map(lambda place: _of_shard(job, place), places))


def _of_shard(job: RepeatsJob, place: int) -> pa.Table:
    first, end = job.ends
    table = read_range(job.workspace, job.hashes[place], first.to_bytes(8) + bytes(8), _below(end))
    high, low = hash_halves(table["content_hash"].combine_chunks())
    start, last = np.searchsorted(high, np.uint64(first)), np.searchsorted(high, np.uint64(end - 1), side="right")
    shards = np.full(last - start, place, dtype=np.uint32)
    inside = [column[start:last].copy() for column in (high, low, table["row"].to_numpy())]  # lets go of the rest
    return pa.table([inside[0], inside[1], shards, inside[2]], names=["high", "low", "shard", "row"])


def _below(end: int) -> bytes:
    """Return a value above every hash whose first half is below `end`, and not above any other hash."""
    return b"\xff" * 17 if end == 2**64 else end.to_bytes(8)
