"""Compare the documents of all shards bucket by bucket, and find those that repeat an earlier one.

Every shard's rows are sorted by a key: the hash of a text or of a URL, or a band of a signature
(`sort`). A bucket is a range of the keys. It reads this range of every shard; what does not fit in memory is
spilled to disk. Buckets need nothing of each other: they are compared in any order, by any machine, and a run that was
killed resumes with those that are left. Whether a corpus has one bucket or many makes no difference to the result.
"""

import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fineweb_mask.models.dedup.choice import jaccard
from fineweb_mask.models.documents import hash_halves
from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.models.schemas import CANDIDATES, PAIRS, REPEATS
from fineweb_mask.models.settings.source import CopiesSettings
from fineweb_mask.tasks.catalog.spilling import spilling_database
from fineweb_mask.tasks.dedup.copies import Shard, preferences
from fineweb_mask.tasks.dedup.sort import ROW_BITS, ROW_GROUP_ROWS, read_range, runs, write_sorted
from fineweb_mask.tasks.storage.atomic import make_folder
from fineweb_mask.tasks.workspace.job import Dependencies, ShardJob, Stage, stage_task
from fineweb_mask.tasks.workspace.references import StageFile

READ_ROWS = 2_000_000
"""Most rows that are read before they are compared, or given to DuckDB, unless one shard has more."""

READERS = 16
"""Files that are read at the same time: at a URL, most of the time is spent waiting."""

_one_at_a_time = Lock()  # in a process

EARLIER = f"""
    SELECT document >> {ROW_BITS} AS shard, document & {2**ROW_BITS - 1} AS row
    FROM documents
    JOIN (SELECT high, low, min(document) >> {ROW_BITS} AS first FROM documents GROUP BY high, low HAVING count(*) > 1)
      USING (high, low)
    WHERE document >> {ROW_BITS} > first
    ORDER BY document
    """  # noqa: S608 - numbers of our own
"""The documents whose text an earlier shard holds."""

TRIED = (0.6, 0.7, 0.8, 0.9)
"""Thresholds of which is counted what they would drop, of the pairs that are compared for the run's own."""

BEST = 2
"""Documents that a band is shared with and that all others are compared with: those that would be kept first."""

NEIGHBOURS = 4
"""Documents that one is compared with of those just before it, in the order of the bands that follow."""

COMPARED = f"""
    WITH shared AS MATERIALIZED (
        FROM documents SEMI JOIN (SELECT key FROM documents GROUP BY key HAVING count(*) > 1) USING (key)
    ), placed AS MATERIALIZED (
        SELECT key, document,
               row_number() OVER (PARTITION BY key ORDER BY rank, document) AS preference,
               row_number() OVER (PARTITION BY key ORDER BY next, rank, document) AS place
        FROM shared
    ), pairs AS MATERIALIZED (
        SELECT one.document AS worse, other.document AS better
        FROM placed AS one JOIN (FROM placed WHERE preference <= {BEST}) AS other USING (key)
        WHERE one.preference > other.preference
        UNION
        SELECT CASE WHEN one.preference > other.preference THEN one.document ELSE other.document END,
               CASE WHEN one.preference > other.preference THEN other.document ELSE one.document END
        FROM placed AS one
        JOIN (SELECT *, place + unnest(range(1, {NEIGHBOURS + 1})) AS after FROM placed) AS other
          ON one.key = other.key AND one.place = other.after
    )
    SELECT worse AS document, better AS other, false AS is_better FROM pairs WHERE worse >= $first
    UNION ALL SELECT better, worse, true FROM pairs WHERE worse >= $first
    ORDER BY ALL
    """  # noqa: S608
"""Pairs of documents that share a band: a bounded number for each, however many share it."""

PREFERRED = """
    SELECT document,
           first_value(document) OVER (PARTITION BY key ORDER BY rank, document) AS better,
           NULL::FLOAT AS similarity
    FROM documents QUALIFY document <> better AND document >= $first ORDER BY ALL
    """
"""All documents of one URL but the preferred one, and that."""


Compared = Literal["repeats", "urls", "pairs", "verified"]


class BucketJob(ShardJob):
    """Find the duplicates in one bucket of a corpus; `bucket_jobs` makes those of all buckets."""

    stage: ClassVar[Stage] = Stage("buckets", version=2, label="dedup", folders=("repeats", "pairs"), interim=True)
    comparison: Compared  # of hashes of texts, of hashes of URLs, of bands, of sets of shingles
    sorted_rows: list[StageFile]  # of each shard, in the order in which the shards came
    bucket: int  # from 0
    buckets: int  # a power of 2
    memory_limit: str
    threshold: float = 0.0  # least similarity of sets of shingles
    shards: tuple[Shard, ...] = ()  # which documents are preferred; not for hashes of texts, and of sets of shingles
    copies: CopiesSettings = CopiesSettings()

    @property
    def kind(self) -> str:
        """The comparison."""
        return self.comparison

    @property
    def folder(self) -> str:
        """The folder of what is found, in the workspace."""
        return COMPARISONS[self.comparison].folder

    @property
    def name(self) -> str:
        """The bucket's number, and how many there are."""
        return f"{self.bucket:0{len(str(self.buckets - 1))}d}-of-{self.buckets}"

    @property
    def shard_names(self) -> list[str]:
        """No shard: what is found is of all shards."""
        return []

    def depends_on(self) -> Dependencies:
        """Return which bucket it is, the threshold, what is preferred, and the fingerprints of what is read."""
        compared = [file.fingerprint for file in self.sorted_rows]
        settings = [self.bucket, self.buckets]
        if self.comparison == "repeats":
            return Dependencies(settings=settings, inputs=compared)
        preferred = [shard.fingerprints(self.copies) for shard in self.shards]
        return Dependencies(
            settings=[*settings, self.threshold, self.copies.model_dump()], inputs=[compared, preferred]
        )

    @property
    def ends(self) -> tuple[int, int]:
        """The least key in the bucket and the largest: 0 to 2**64 - 1, of a hash its first half."""
        size = 2**64 // self.buckets
        return self.bucket * size, (self.bucket + 1) * size - 1


def bucket_jobs(
    root: str,
    comparison: Compared,
    sorted_rows: list[StageFile],
    memory_limit: str,
    **options: Any,  # noqa: ANN401 - other fields of the jobs
) -> list[BucketJob]:
    """Return the jobs of all buckets of a corpus, whose number depends on that of its rows."""
    rows = sum(file.rows for file in sorted_rows)
    buckets = 2 ** max(0, math.ceil(math.log2(max(1, rows) / COMPARISONS[comparison].most)))
    return [
        BucketJob(
            root=root,
            comparison=comparison,
            sorted_rows=sorted_rows,
            bucket=bucket,
            buckets=buckets,
            memory_limit=memory_limit,
            **options,
        )
        for bucket in range(buckets)
    ]


@stage_task
def find_in_bucket(job: BucketJob) -> None:
    """Write every document of the bucket that repeats an earlier one, or pairs of similar ones.

    Raises
    ------
    WorkspaceError
        If the memory limit is too little for DuckDB.
    """
    _, schema, _, found = COMPARISONS[job.comparison]
    write_sorted(job.output, schema, job.key, (batch.cast(schema) for batch in found(job)))


def _read(job: BucketJob) -> Iterator[pa.Table]:
    """Yield the rows of the bucket, of some neighbouring shards at a time, with the number of each document."""
    portions = list(runs([file.rows / job.buckets for file in job.sorted_rows], READ_ROWS))
    with ThreadPoolExecutor(READERS) as pool:
        for places in track("portions of the shards", portions, part=(0, 0.5)):
            yield pa.concat_tables(pool.map(partial(_of_shard, job), places))


def _of_shard(job: BucketJob, place: int) -> pa.Table:
    file, (first, last) = job.sorted_rows[place], job.ends
    if job.comparison == "repeats":
        rows = read_range(job.workspace, file, first.to_bytes(8) + bytes(8), last.to_bytes(8) + b"\xff" * 8)
        high, low = hash_halves(rows["content_hash"].combine_chunks())
        keys = pa.table([high, low], names=["high", "low"])
    else:
        rows = read_range(job.workspace, file, first, last)
        if job.shards:
            found = preferences(job.root, job.shards[place], job.copies)
            at = rows["row"].to_numpy()
            rows = rows.append_column("rank", pa.array(found.rank[at])).filter(pa.array(found.is_compared[at]))
        keys = rows.drop_columns("row")
    return keys.append_column("document", document_numbers(place, rows["row"].to_numpy()))


def document_numbers(place: int, rows: NDArray[np.uint32]) -> pa.Array:
    """Return the numbers of rows of the shard at a place in the order of arrival, (n,) uint64.

    >>> document_numbers(2, np.array([0, 7], dtype=np.uint32)).to_pylist() == [2 * 2**32, 2 * 2**32 + 7]
    True
    """
    return pa.array(rows.astype(np.uint64) + (np.uint64(place) << np.uint64(ROW_BITS)))


@contextmanager
def _own_turn() -> Iterator[None]:
    """Wait until no other bucket is compared in this process: the memory limit is that of all of them."""
    while not _one_at_a_time.acquire(timeout=0.1):
        raise_if_stopped()
    try:
        yield
    finally:
        _one_at_a_time.release()


def _found_by(query: str, keys: Sequence[str], job: BucketJob) -> Iterator[pa.RecordBatch]:
    """Yield what a query over the table `documents` finds in the bucket."""
    columns = ", ".join(f'"{name}" UBIGINT' for name in (*keys, "document"))
    with _own_turn():
        make_folder(job.workspace.cache)
        spill = tempfile.mkdtemp(prefix=".dedup-", suffix=".partial", dir=job.workspace.cache)
        with spilling_database(Path(spill), job.memory_limit, f"{job.kind} {job.name}") as connection:
            connection.execute("SET preserve_insertion_order = false")
            connection.execute(f"CREATE TABLE documents ({columns})")
            for rows in _read(job):
                connection.from_arrow(rows.select([*keys, "document"])).insert_into("documents")
            own = {"first": sum(shard.exact is None for shard in job.shards) << ROW_BITS} if "$first" in query else {}
            yield from connection.sql(query, params=own).to_arrow_reader(ROW_GROUP_ROWS)


def _verified(job: BucketJob) -> list[pa.RecordBatch]:
    """Return the pairs of documents that have enough of their shingles in common for a threshold that is tried."""
    with _own_turn():
        rows = pa.concat_tables(_read(job)).combine_chunks()
        documents, better = rows["document"].to_numpy(), rows["better"].to_numpy()
        shingles = rows["shingles"].combine_chunks()
        own = np.flatnonzero(documents == better)
        own = own[np.argsort(documents[own])]
        left = np.flatnonzero(documents != better)
        right = own[np.searchsorted(documents[own], better[left])]
        ends = shingles.offsets.to_numpy()[1:].astype(np.int64) - shingles.offsets[0].as_py()
        similarity = jaccard(shingles.flatten().to_numpy(), ends, left, right)
        is_alike = similarity >= min(job.threshold, *TRIED)
        return _pairs(documents[left][is_alike], better[left][is_alike], similarity[is_alike])


def _pairs(*columns: NDArray[Any]) -> list[pa.RecordBatch]:
    found: list[pa.RecordBatch] = (
        pa.table(list(columns), schema=PAIRS)
        .sort_by([("document", "ascending"), ("better", "ascending")])
        .combine_chunks()
        .to_batches()
    )
    return found


class Comparison(NamedTuple):
    """How the documents of a bucket are compared."""

    folder: str  # of what is found
    schema: pa.Schema  # of what is found
    most: int  # rows of a bucket, about: 24 bytes each of a hash, 32 of a band, some KB of shingles
    found: Callable[[BucketJob], Iterable[pa.RecordBatch]]


COMPARISONS: dict[Compared, Comparison] = {
    "repeats": Comparison("repeats", REPEATS, 50_000_000, partial(_found_by, EARLIER, ("high", "low"))),
    "urls": Comparison("pairs", PAIRS, 50_000_000, partial(_found_by, PREFERRED, ("key", "rank"))),
    "pairs": Comparison("pairs", CANDIDATES, 50_000_000, partial(_found_by, COMPARED, ("key", "next", "rank"))),
    "verified": Comparison("pairs", PAIRS, 100_000, _verified),
}
