"""Find the documents of one bucket, which is a range of the keys of bands, that share a band with an earlier document.

A bucket reads its range of the keys of every shard; DuckDB compares them. Buckets need nothing of each other, and
whether a corpus has one or many makes no difference to the clusters that their pairs are joined into.
"""

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import numpy as np
import pyarrow as pa

from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.schemas import PAIRS
from fineweb_mask.tasks.dedup.database import database, own_turn
from fineweb_mask.tasks.dedup.sorted_rows import ROW_GROUP_ROWS, read_range, runs, write_sorted
from fineweb_mask.tasks.workspace.job import Dependencies, ShardJob, Stage, stage_task
from fineweb_mask.tasks.workspace.references import StageFile

BUCKET_KEYS = 100_000_000
"""Most keys of a bucket, about: the table that DuckDB makes of them has 16 bytes for each."""

READ_KEYS = 4_000_000
"""Most keys that are read before they are given to DuckDB, unless one shard has more."""

READERS = 16
"""Files that are read at the same time: at a URL, most of the time is spent waiting."""

ROW_BITS = 32  # of a document's number; the place of its shard is above them

EARLIEST = """
    SELECT DISTINCT document, twin
    FROM keys
    JOIN (SELECT key, min(document) AS twin FROM keys GROUP BY key HAVING count(*) > 1) USING (key)
    WHERE document > twin
    ORDER BY document, twin
    """


class PairsJob(ShardJob):
    """Find the pairs in one bucket of a corpus; `pairs_jobs` makes those of all buckets."""

    stage: ClassVar[Stage] = Stage(
        "pairs", version=1, label="dedup", folders=("pairs",), interim=True, run_with=("select",)
    )
    signatures: list[StageFile]  # in the order in which the shards came
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
        """Return which bucket it is, and the fingerprints of the signatures in the order of the shards."""
        return Dependencies(settings=[self.bucket, self.buckets], inputs=[file.fingerprint for file in self.signatures])

    @property
    def ends(self) -> tuple[int, int]:
        """The least key in the bucket, and the least beyond it: 0 to 2**64."""
        size = 2**64 // self.buckets
        return self.bucket * size, (self.bucket + 1) * size


def pairs_jobs(root: str, signatures: list[StageFile], memory_limit: str) -> list[PairsJob]:
    """Return the jobs of all buckets of a corpus, whose number depends on that of its keys."""
    keys = sum(file.rows for file in signatures)
    buckets = 2 ** max(0, math.ceil(math.log2(max(1, keys) / BUCKET_KEYS)))
    return [
        PairsJob(root=root, signatures=signatures, bucket=bucket, buckets=buckets, memory_limit=memory_limit)
        for bucket in range(buckets)
    ]


@stage_task
def find_pairs(job: PairsJob) -> None:
    """Write every document of the bucket that shares a band with an earlier one, and the earliest that does.

    Raises
    ------
    WorkspaceError
        If the memory limit is too little for DuckDB.
    """
    with own_turn(), database(job.workspace, job.memory_limit) as connection:
        connection.execute("CREATE TABLE keys (key UBIGINT, document UBIGINT)")
        for keys in _read(job):
            connection.from_arrow(keys).insert_into("keys")
        pairs = connection.sql(EARLIEST).to_arrow_reader(ROW_GROUP_ROWS)
        write_sorted(job.output, PAIRS, job.key, (batch.cast(PAIRS) for batch in pairs))


def _read(job: PairsJob) -> Iterator[pa.Table]:
    portions = list(runs([file.rows / job.buckets for file in job.signatures], READ_KEYS))
    with ThreadPoolExecutor(READERS) as pool:
        for places in track("portions of the signatures", portions, part=(0, 0.5)):
            yield pa.concat_tables(pool.map(lambda place: _of_shard(job, place), places))


def _of_shard(job: PairsJob, place: int) -> pa.Table:
    first, end = job.ends
    table = read_range(job.workspace, job.signatures[place], first, end)
    keys = table["key"].to_numpy()
    start, stop = np.searchsorted(keys, np.uint64(first)), np.searchsorted(keys, np.uint64(end - 1), side="right")
    documents = document_numbers(place, table["row"].to_numpy()[start:stop])
    return pa.table([keys[start:stop].copy(), documents], names=["key", "document"])


def document_numbers(place: int, rows: np.ndarray[tuple[int], np.dtype[np.uint32]]) -> pa.Array:
    """Return the numbers of rows of the shard at a place in the order of arrival, (n,) uint64.

    >>> document_numbers(2, np.array([0, 7], dtype=np.uint32)).to_pylist() == [2 * 2**32, 2 * 2**32 + 7]
    True
    """
    return pa.array(rows.astype(np.uint64) + (np.uint64(place) << np.uint64(ROW_BITS)))
