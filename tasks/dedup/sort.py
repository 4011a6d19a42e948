"""Sort the rows of one shard by what documents are compared by, so that all shards can be compared range by range.

For exact duplicates this is the hash of a text, for pages of one URL that of the URL, for near-duplicates a band of the
signature by MinHash, and to verify a pair a hash of its better document.

Rows are in the order of their first column. Row groups are small, and each records its first and its last value: a
reader opens only those in its range.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fineweb_mask.models.dedup.minhash import RENSA_ALGORITHM, SEED, Sketch, band_keys, hash_of, mix, shingle_sets
from fineweb_mask.models.runtime.progress import track_by_size
from fineweb_mask.models.schemas import CANDIDATES, HASHES, KEYS, SHINGLES, SIGNATURES
from fineweb_mask.tasks.storage.parquet import VerifiedFile
from fineweb_mask.tasks.workspace.job import Dependencies, ShardJob, Stage, stage_task
from fineweb_mask.tasks.workspace.references import StageFile, StageKey
from fineweb_mask.tasks.workspace.stage_parquet import open_parquet, stage_file_writer
from fineweb_mask.tasks.workspace.workspace import Workspace

TEXTS_AT_ONCE = 1_000
GROUP_KEYS = 131_072
"""Keys of signatures in a row group: a shard of 400,000 documents has 43 of them."""

ROW_GROUP_ROWS = 8_192
"""A shard of 400,000 documents has 49 row groups, for which its footer takes 10 KB."""
ADDRESS = r"(?s)^\s*(?:https?://)?(?:www\.)?([^#]*?)/?\s*(?:#.*)?$"
"""What is compared of a URL, as its first group."""
PAIRS_OF_GROUP = 512
"""Sets of shingles in a row group: about 2 MB."""
ROW_BITS = 32  # of a document's number; the place of its shard is above them


class SortJob(ShardJob):
    """Sort the rows of one shard."""

    stage: ClassVar[Stage] = Stage("sort", version=1, label="dedup", folders=("hashes", "signatures"))
    by: Literal["hash", "urls", "signatures"]
    file: StageFile  # the documents
    sketch: Sketch | None = None  # for signatures

    @property
    def kind(self) -> str:
        """What the rows are sorted by."""
        return self.by

    @property
    def folder(self) -> str:
        """The folder of the sorted rows, in the workspace."""
        return "hashes" if self.by == "hash" else "signatures"

    @property
    def name(self) -> str:
        """The name of the shard."""
        return self.file.name

    def depends_on(self) -> Dependencies:
        """Return how texts are sketched, and the fingerprint of the documents."""
        settings: Any = None
        if self.sketch is not None:
            settings = [list(self.sketch), SEED, RENSA_ALGORITHM, SIGNATURES.names]
        return Dependencies(settings=settings, inputs=[self.file.fingerprint])


@stage_task
def sort_rows(job: SortJob) -> None:
    """Write what documents are compared by, and their rows, in its order.

    Raises
    ------
    SettingsError
        If the package that makes signatures is not installed.
    """
    group_rows = None
    if job.sketch is not None:
        rows, group_rows = _sketched(job.workspace, job.file, job.sketch), GROUP_KEYS
    elif job.by == "urls":
        rows = _addressed(job.workspace, job.file)
    else:
        rows = _hashed(job.workspace, job.file)
    in_order = rows.sort_by([(rows.schema.names[0], "ascending"), ("row", "ascending")])
    write_sorted(job.output, rows.schema, job.key, in_order.combine_chunks().to_batches(), group_rows)


def _hashed(workspace: Workspace, documents: StageFile) -> pa.Table:
    """Return the hash and the row of every document; no text is read."""
    with open_parquet(workspace.root / documents.path) as opened:
        return opened.read(columns=HASHES.names).select(HASHES.names).cast(HASHES)


def _addressed(workspace: Workspace, documents: StageFile) -> pa.Table:
    """Return the hash of every document's URL and the document's row; one without a URL is left out."""
    with open_parquet(workspace.root / documents.path) as opened:
        table = opened.read(columns=["row", "url"])
    addresses = pc.replace_substring_regex(table["url"], ADDRESS, r"\1")
    has_one = pc.fill_null(pc.not_equal(addresses, ""), False)
    hashes = np.fromiter(map(hash_of, addresses.filter(has_one).to_pylist()), np.uint64)
    return pa.table([hashes, table["row"].filter(has_one)], schema=KEYS)


def _sketched(workspace: Workspace, documents: StageFile, sketch: Sketch) -> pa.Table:
    """Return the key of each band of every document, and the document's row.

    A document with fewer words than a shingle has none, and so no near-duplicates.

    Raises
    ------
    SettingsError
        If the package that makes signatures is not installed.
    """
    found = [SIGNATURES.empty_table()]
    with VerifiedFile(workspace.resolve(documents)) as file:
        batches = file.iter_batches(TEXTS_AT_ONCE, columns=["row", "text"])
        for batch in track_by_size("documents", batches, documents.rows, lambda batch: batch.num_rows, part=(0, 1)):
            bands = band_keys(batch["text"], sketch)
            rows = np.repeat(batch["row"].to_numpy()[bands.rows], bands.keys.shape[1])
            found.append(pa.table([bands.keys.ravel(), rows, bands.following.ravel()], schema=SIGNATURES))
    return pa.concat_tables(found)


def write_sorted(
    path: Path, schema: pa.Schema, key: StageKey, batches: Iterable[pa.RecordBatch], group_rows: int | None = None
) -> None:
    """Write batches whose rows are in the order of the first column, in row groups of so many rows."""
    most = group_rows or ROW_GROUP_ROWS
    with stage_file_writer(path, schema, key, use_dictionary=False) as writer:
        for batch in batches:
            for start in range(0, batch.num_rows, most):
                writer.write(batch.slice(start, most))
                writer.flush()


def read_range(workspace: Workspace, file: StageFile, first: bytes | int, last: bytes | int) -> pa.Table:
    """Return the rows of a sorted file whose first column is from `first` to `last`, both included.

    At a URL, only the row groups that hold some of them and the footer are downloaded.
    """
    with open_parquet(workspace.root / file.path) as opened:
        footer = opened.metadata

        def lowest(group: int) -> Any:  # noqa: ANN401 - bytes or a number
            return footer.row_group(group).column(0).statistics.min

        def highest(group: int) -> Any:  # noqa: ANN401
            return footer.row_group(group).column(0).statistics.max

        groups = range(footer.num_row_groups)
        start, stop = bisect_left(groups, first, key=highest), bisect_right(groups, last, key=lowest)
        table = opened.read_row_groups(list(groups[start:stop]))
    kind = table.schema.field(0).type
    is_inside = pc.and_(
        pc.greater_equal(table[0], pa.scalar(first, kind)), pc.less_equal(table[0], pa.scalar(last, kind))
    )
    return table.filter(is_inside)


def runs(sizes: Sequence[float], most: float) -> Iterator[range]:
    """Divide places into runs, in their order, whose sizes add up to at most `most`, or that are one place.

    Examples
    --------
    >>> list(runs([4, 4, 4, 9, 1], most=8))
    [range(0, 2), range(2, 3), range(3, 4), range(4, 5)]
    """
    start, total = 0, 0.0
    for place, size in enumerate(sizes):
        if place > start and total + size > most:
            yield range(start, place)
            start, total = place, 0.0
        total += size
    if sizes:
        yield range(start, len(sizes))


class ShinglesJob(ShardJob):
    """Write the shingles of the documents of one shard that are in a pair, once for each key of their pairs."""

    stage: ClassVar[Stage] = Stage("shingles", version=1, label="dedup", folders=("shingles",), interim=True)
    documents: StageFile
    place: int  # of the shard, in the order in which the shards came
    pairs: list[StageFile]  # of each bucket
    words: int  # of a shingle

    @property
    def name(self) -> str:
        """The name of the shard."""
        return self.documents.name

    def depends_on(self) -> Dependencies:
        """Return the length of a shingle, the shard's place, and the fingerprints of the documents and the pairs."""
        return Dependencies(
            settings=[self.words, self.place],
            inputs=[self.documents.fingerprint, *(file.fingerprint for file in self.pairs)],
        )


@stage_task
def sort_shingles(job: ShinglesJob) -> None:
    """Read the texts of the documents that are in a pair, and write their shingles in the order of the keys."""
    first = job.place << ROW_BITS
    tables = [read_range(job.workspace, file, first, first + 2**ROW_BITS - 1) for file in job.pairs]
    pairs = pa.concat_tables([CANDIDATES.empty_table(), *tables])
    documents, others, is_better = (pairs[name].to_numpy() for name in CANDIDATES.names)
    better, worse = np.where(is_better, documents, others), np.where(is_better, others, documents)
    keys = mix(better ^ mix(worse >> np.uint64(ROW_BITS)))  # so that the many copies of one have as many keys as shards
    keys, rows, better = np.unique(
        np.stack([keys, documents - np.uint64(first), better]), axis=1
    )  # of all shared bands
    sets = _shingles(job, np.unique(rows).astype(np.int64))
    batches = (
        pa.record_batch(
            [keys[part], rows[part].astype(np.uint32), better[part], [sets[row] for row in rows[part].tolist()]],
            schema=SHINGLES,
        )
        for part in (slice(start, start + PAIRS_OF_GROUP) for start in range(0, len(keys), PAIRS_OF_GROUP))
    )
    write_sorted(job.output, SHINGLES, job.key, batches, PAIRS_OF_GROUP)


def _shingles(job: ShinglesJob, rows: NDArray[np.int64]) -> dict[int, NDArray[np.uint64]]:
    """Return the set of shingles of each of a shard's documents, by its row, (n,) ascending."""
    found: dict[int, NDArray[np.uint64]] = {}
    if not len(rows):
        return found
    with VerifiedFile(job.workspace.resolve(job.documents)) as file:
        batches = file.iter_batches(TEXTS_AT_ONCE, columns=["row", "text"])
        for batch in track_by_size("documents", batches, job.documents.rows, lambda batch: batch.num_rows, part=(0, 1)):
            needed = batch.filter(np.isin(batch["row"].to_numpy(), rows))
            if needed.num_rows:
                sets = shingle_sets(needed["text"], job.words)
                found |= dict(zip(needed["row"].to_pylist(), sets, strict=True))
    return found
