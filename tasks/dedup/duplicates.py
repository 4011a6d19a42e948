"""List the duplicates of every shard, exact ones and then near ones: the rows from which nothing is selected.

Ingest drops repeats within a shard and records each text's hash. Then every shard's hashes are sorted (`hashes`), the
shards are compared in buckets (`repeats`), and here what the buckets found is written shard by shard. The duplicates
stay in the documents, so that shards can be scored and embedded without waiting for each other, and are left out when
the subset is selected.

For near-duplicates, texts are sketched shard by shard (`signatures`), documents that share a band are paired bucket by
bucket (`pairs`), the texts of the paired ones are read again (`shingles`), and the pairs are compared exactly. Here it
is chosen which documents of these pairs are dropped, as those of equal URLs are. Exact duplicates are in these lists,
too: a shard has one list of all rows that nothing is selected from.

Of equal texts, that of the shard that came into the workspace first is kept; of shards that came together, that of the
first name. With the order of the names alone, a new shard whose name comes first would take the copies of others, whose
selections would all be made again. So the order in which shards came is remembered. Of near-duplicates the earliest
is kept as well, unless `ingest.copies` says otherwise: of the shard that came first, then of the first row. The order
of work does not matter.

A file's name tells what is in it, and a shard without duplicates has no file: when a shard is added, no other shard's
duplicates are written again, and no selection is made again, as long as the earliest copies are kept.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fineweb_mask.models.dedup.choice import Dropped, choose
from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.schemas import (
    DUPLICATES,
    DUPLICATES_OF_SHARDS,
    NEAR_DUPLICATES,
    NEAR_DUPLICATES_OF_SHARDS,
    PAIRS,
)
from fineweb_mask.models.settings.source import CopiesSettings
from fineweb_mask.tasks.dedup.buckets import TRIED
from fineweb_mask.tasks.dedup.copies import Shard
from fineweb_mask.tasks.dedup.sort import ROW_BITS, read_range, runs
from fineweb_mask.tasks.storage.atomic import atomic_write
from fineweb_mask.tasks.storage.parquet import read_table
from fineweb_mask.tasks.storage.remote.copies import read_text, size_of
from fineweb_mask.tasks.workspace.job import Dependencies, ShardJob, Stage, find_file, stage_task
from fineweb_mask.tasks.workspace.listing import Listing
from fineweb_mask.tasks.workspace.references import (
    COUNTED,
    NEAR,
    SAME_URL,
    StageFile,
    content_key,
    digest,
    stage_file_name,
)
from fineweb_mask.tasks.workspace.stage_parquet import duplicate_rows, read_stage_footer, stage_file_writer
from fineweb_mask.tasks.workspace.workspace import Workspace

GATHERED_ROWS = 16_000_000
"""Documents of the shards whose duplicates are in memory at the same time, unless one shard has more."""

WRITERS = 32
"""Files that are written at the same time: at a URL, most of the time is spent waiting."""

Rows = TypeVar("Rows")


class ListsJob(ShardJob):
    """List rows of every shard of a corpus."""

    name: ClassVar[str] = "corpus"
    summaries: ClassVar[str]  # folder of the summaries, beside what the buckets found
    listed_rows: ClassVar[str]  # what they are called in a message
    sorted_rows: list[StageFile]  # of each shard, in the order in which the shards came
    buckets: tuple[StageFile, ...] = ()  # what was found in each: needed to build the output, not to find it

    @property
    def shard_names(self) -> list[str]:
        """The names of the shards."""
        return [file.name for file in self.sorted_rows]

    @property
    def summary(self) -> Path:
        """The file that says which duplicates each shard has."""
        return self.workspace.shard_path(self.summaries, self.name, self.key)

    def paths(self) -> list[Path]:
        """Return the summary, and the files of the shards that have duplicates, as far as the summary is there."""
        root = self.workspace.root
        return [self.summary, *(root / file.path for file in self._listed(None) or [] if file.path)]

    def compared(self) -> tuple[StageFile, ...]:
        """Return what was found in every bucket.

        Raises
        ------
        WorkspaceError
            If it is not given.
        """
        if not self.buckets:
            raise WorkspaceError(
                f"the {self.listed_rows} of a corpus are listed from what its buckets found, which is not there: "
                "run again"
            )
        return self.buckets

    def shard_files(self, listing: Listing | None = None) -> list[StageFile] | None:
        """Return the shards' duplicates, in the order of the shards, or None if one is not there."""
        files, root = self._listed(listing), self.workspace.root
        if files is None:
            return None
        written = [file for file in files if file.path]
        sizes = (size_of(root / file.path) if listing is None else listing.size_of(file.path) for file in written)
        return files if all(size == file.bytes for size, file in zip(sizes, written, strict=True)) else None

    def summarised(self, listing: Listing | None = None) -> StageFile | None:
        """Return the reference to the summary; None without one."""
        return find_file(self, self.summaries, self.name, listing)

    def _listed(self, listing: Listing | None) -> list[StageFile] | None:
        """Return the shards' duplicates as the summary has them; None without a summary."""
        if (found := self.summarised(listing)) is None:
            return None
        return [self._reference(row) for row in read_table(self.workspace.resolve(found)).to_pylist()]

    def _reference(self, row: dict[str, Any]) -> StageFile:
        """Return the reference to a shard's list, from its row of the summary; without a path if it has none."""
        found = duplicates_of(row["shard"], row["rows"], row["bytes"], row["content"])
        if NEAR not in row:
            return found
        counts = {reason: row[reason] for reason in COUNTED if row[reason]}
        return found.model_copy(update={"stage": self.stage.name, "path": row["path"], "details": counts})


class DedupJob(ListsJob):
    """List the duplicates of every shard of a corpus."""

    stage: ClassVar[Stage] = Stage(
        "dedup",
        version=2,
        folders=("duplicates",),
        counts=("ingested", "eligible"),
    )
    summaries: ClassVar[str] = "repeats"
    listed_rows: ClassVar[str] = "duplicates"

    def depends_on(self) -> Dependencies:
        """Return the shards and the fingerprints of their hashes, in their order."""
        return Dependencies(settings=None, inputs=[[file.name, file.fingerprint] for file in self.sorted_rows])


class NearDedupJob(ListsJob):
    """List the near-duplicates of every shard of a corpus, its pages of one URL, and its exact duplicates."""

    stage: ClassVar[Stage] = Stage("near_dedup", version=3, label="dedup", folders=("near_duplicates",))
    summaries: ClassVar[str] = "pairs"
    listed_rows: ClassVar[str] = "near-duplicates"
    shards: tuple[Shard, ...]  # with the exact duplicates of each; those of other corpora come first
    urls: tuple[StageFile, ...] = ()  # the sorted hashes of the URLs of each, if they are compared, too
    threshold: float
    copies: CopiesSettings

    def depends_on(self) -> Dependencies:
        """Return the settings, the shards, and the fingerprints of what is compared and preferred, in their order."""
        shards = zip(self.sorted_rows, self.shards, strict=True)
        preferred = [[file.name, file.fingerprint, *shard.fingerprints(self.copies)] for file, shard in shards]
        return Dependencies(
            settings=[self.threshold, self.copies.model_dump()],
            inputs=[*preferred, [file.fingerprint for file in self.urls]],
        )

    @property
    def shard_names(self) -> list[str]:
        """The names of the shards of this corpus."""
        return [shard.documents.name for shard in self.shards if shard.exact is not None]


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
    return duplicates_of(shard, 0, 0, digest([shard, []]))


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
    _write_lists(job, DUPLICATES_OF_SHARDS, found, partial(_write_exact, job))


@stage_task
def near_dedup(job: NearDedupJob) -> None:
    """Write the list of every shard that has near-duplicates, where it is not there yet, and then the summary.

    The summary's details say what other thresholds would drop.

    Raises
    ------
    WorkspaceError
        If what the buckets found is not given.
    """
    pairs = pa.concat_tables(read_table(job.workspace.resolve(file), schema=PAIRS) for file in job.compared())
    columns = [pairs[name].to_numpy() for name in PAIRS.names]

    def at(threshold: float) -> Dropped:
        is_alike = ~(columns[2] < threshold)  # also pages of one URL, which have no similarity
        return choose(*(column[is_alike] for column in columns))

    found = at(job.threshold)
    tried = [
        {"threshold": one, **_least_similar(job, found if one == job.threshold else at(one))}
        for one in sorted({*TRIED, job.threshold})
    ]
    shards = np.arange(len(job.shards) + 1, dtype=np.uint64)
    ends = pairwise(np.searchsorted(found.documents >> np.uint64(ROW_BITS), shards).tolist())
    names = np.array([shard.documents.name for shard in job.shards], dtype=object)
    last_row = np.uint64(2**ROW_BITS - 1)
    similarity = pa.array(found.similarity, mask=np.isnan(found.similarity))
    twins = names[found.kept >> np.uint64(ROW_BITS)]
    listed = [found.documents & last_row, pa.array(twins, pa.string()), found.kept & last_row, similarity]
    near = pa.table(listed, names=NEAR_DUPLICATES.names).cast(NEAR_DUPLICATES)
    exact = [shard.exact for shard in job.shards]
    parts = ((one, near.slice(start, end - start)) for one, (start, end) in zip(exact, ends, strict=True))
    of_shards = [(one, part) for one, part in parts if one is not None]
    details = {"threshold": job.threshold, "tried": tried if tried[0]["documents"] else []}
    _write_lists(job, NEAR_DUPLICATES_OF_SHARDS, [of_shards], partial(_write_near, job), details)


def _least_similar(job: NearDedupJob, dropped: Dropped) -> dict[str, Any]:
    """Return how many near-duplicates are dropped, and the least similar of them beside the one kept for it."""
    similarity = dropped.similarity
    documents = int(np.count_nonzero(~np.isnan(similarity)))
    if not documents:
        return {"documents": 0}
    least, found = np.nanargmin(similarity), dict[str, Any]()
    for side, number in (("dropped", int(dropped.documents[least])), ("kept", int(dropped.kept[least]))):
        place, row = divmod(number, 2**ROW_BITS)
        found[side] = [job.shards[place].documents.name, row]
    return {"documents": documents, "similarity": float(similarity[least]), **found}


def _write_lists(
    job: ListsJob,
    schema: pa.Schema,
    portions: Iterable[Iterable[Rows]],
    write: Callable[[Rows], StageFile],
    details: Mapping[str, Any] | None = None,  # of the summary
) -> None:
    """Write the list of every shard by `write`, several at a time, and then the summary, whose columns are `schema`."""
    with stage_file_writer(job.summary, schema, job.key) as summary, ThreadPoolExecutor(WRITERS) as pool:
        for portion in portions:
            files = [
                {
                    "shard": file.name,
                    "rows": file.rows,
                    "bytes": file.bytes,
                    "content": file.fingerprint,
                    **{reason: file.details.get(reason, 0) for reason in COUNTED},
                    "path": file.path,
                }
                for file in pool.map(write, portion)
            ]
            summary.write(pa.RecordBatch.from_pylist(files, schema=schema))
        summary.details = dict(details or {})


def _write_list(path: Path, rows: pa.Table, content: str, *, force: bool) -> int:
    """Write a shard's list, unless one of this content is there; return its size in bytes."""
    key = content_key(content)
    if force or (footer := read_stage_footer(path)) is None or footer.key != key:
        with stage_file_writer(path, rows.schema, key) as writer:
            for batch in rows.combine_chunks().to_batches():
                writer.write(batch)
    return size_of(path) or 0


def _duplicates(job: DedupJob, places: range) -> Iterator[tuple[str, NDArray[np.uint32]]]:
    """Yield the names and the duplicates of some neighbouring shards."""
    tables = [read_range(job.workspace, file, places.start, places.stop - 1) for file in job.compared()]
    found = pa.concat_tables(tables).sort_by([("shard", "ascending"), ("row", "ascending")])
    starts = np.searchsorted(found["shard"].to_numpy(), [*places, places.stop])
    for place, (start, stop) in zip(places, pairwise(starts), strict=True):
        yield job.shard_names[place], found["row"][start:stop].to_numpy()


def _write_exact(job: DedupJob, duplicates: tuple[str, NDArray[np.uint32]]) -> StageFile:
    """Write a shard's duplicates, if it has any and they are not there yet."""
    shard, rows = duplicates
    content = digest([shard, rows.tolist()])  # it stands for the duplicates in the keys of jobs that read them
    found = duplicates_of(shard, len(rows), 0, content)
    if not found.path:
        return found
    size = _write_list(job.workspace.root / found.path, pa.table([rows], schema=DUPLICATES), content, force=job.force)
    return found.model_copy(update={"bytes": size})


def _write_near(job: NearDedupJob, found: tuple[StageFile, pa.Table]) -> StageFile:
    """Write a shard's list, if it has near-duplicates and the list is not there yet; without any, it is the exact one.

    Its fingerprint is of the rows alone: which copy is kept makes no difference to a selection.
    """
    exact, near = found
    if not near.num_rows:
        return exact
    repeated = pa.table([duplicate_rows(job.workspace, exact)], schema=DUPLICATES)
    both = pa.concat_tables([repeated, near], promote_options="default").sort_by("row")
    rows, *named = (column.to_pylist() for column in both.columns)
    content = digest([exact.name, rows, *named])
    path = job.workspace.root / job.folder / stage_file_name(exact.name, content_key(content))
    size = _write_list(path, both, content, force=job.force)
    same_url = near["similarity"].null_count
    return StageFile(
        stage=job.stage.name,
        name=exact.name,
        path=job.workspace.relative(path),
        rows=both.num_rows,
        bytes=size,
        fingerprint=digest([exact.fingerprint, rows]),
        details={NEAR: near.num_rows - same_url, SAME_URL: same_url},
    )


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
