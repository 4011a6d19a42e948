"""List the duplicates of every shard, exact and near ones: the rows from which nothing is selected.

Ingest drops repeats within a shard and records each text's hash. For near-duplicates, texts are sketched shard by
shard. Then the documents of all shards are compared in one job, which writes the list of each shard. The duplicates
stay in the documents, and are left out when these are scored, embedded and selected.

Of equal texts, that of the shard that came into the workspace first is kept; of shards that came together, that of the
first name. With the order of the names alone, a new shard whose name comes first would take the copies of others, whose
selections would all be made again. So the order in which shards came is remembered. Of near-duplicates the earliest
is kept as well, unless `ingest.copies` says otherwise: of the shard that came first, then of the first row. The order
of work does not matter.

A file's name tells what is in it, and a shard without duplicates has no file: when a shard is added, no other shard's
duplicates are written again, and no selection is made again, as long as the earliest copies are kept.
"""

import json
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import duckdb
import numpy as np
import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from fineweb_mask.models.dedup.choice import Dropped, choose
from fineweb_mask.models.dedup.minhash import Sketch
from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.schemas import DUPLICATES, DUPLICATES_OF_SHARDS
from fineweb_mask.models.settings import IngestSettings
from fineweb_mask.tasks.catalog.spilling import spilling_database
from fineweb_mask.tasks.dedup.comparison import LAST, PAIRS, ROW_BITS, Comparison, runs
from fineweb_mask.tasks.dedup.sketch import Documents, name_of
from fineweb_mask.tasks.storage.atomic import atomic_write, make_folder
from fineweb_mask.tasks.storage.parquet import read_table
from fineweb_mask.tasks.storage.remote.copies import read_text, size_of
from fineweb_mask.tasks.workspace.job import Dependencies, ShardJob, Stage, find_file, stage_task
from fineweb_mask.tasks.workspace.listing import Listing
from fineweb_mask.tasks.workspace.references import (
    NEAR,
    SAME_URL,
    StageFile,
    content_key,
    digest,
    stage_file_name,
)
from fineweb_mask.tasks.workspace.stage_parquet import read_stage_footer, stage_file_writer
from fineweb_mask.tasks.workspace.workspace import Workspace

SUMMARIES = "compared"
"""Folder of the summaries, which say what duplicates each shard has."""

TRIED = (0.6, 0.7, 0.8, 0.9)
"""Thresholds of which is counted what they would drop, of the pairs that are compared for the run's own."""

LISTED_ROWS = 16_000_000
"""Documents of the shards whose duplicates are in memory at the same time, unless one shard has more."""

WRITERS = 32
"""Files that are written at the same time: at a URL, most of the time is spent waiting."""


LISTED = f"""
    SELECT document >> {ROW_BITS} AS place, document & {LAST} AS row, better >> {ROW_BITS} AS twin,
           better & {LAST} AS twin_row, similarity
    FROM (SELECT document, NULL AS better, NULL AS similarity FROM repeats UNION ALL FROM near)
    WHERE document BETWEEN $first AND $last ORDER BY document
    """  # noqa: S608 - numbers of our own


class Shard(BaseModel):
    """What is compared of a shard, or of a file of another corpus."""

    model_config = ConfigDict(frozen=True)

    documents: Documents
    signatures: StageFile | None = None  # where near-duplicates are looked for

    @property
    def is_own(self) -> bool:
        """Whether its documents are of this corpus."""
        return isinstance(self.documents, StageFile)


class DedupJob(ShardJob):
    """List the duplicates of every shard of a corpus."""

    stage: ClassVar[Stage] = Stage(
        "dedup", version=4, folders=("duplicates", SUMMARIES), counts=("ingested", "eligible")
    )
    name: ClassVar[str] = "corpus"
    shards: tuple[Shard, ...]  # files of other corpora first, then in the order in which the shards came
    settings: IngestSettings
    memory_limit: str

    def depends_on(self) -> Dependencies:
        """Return what is compared, which copy is kept, and the fingerprints of what is read, in their order."""
        ingest = self.settings
        near = ingest.near_threshold if ingest.near_dedup == "minhash" else None
        settings = [ingest.exact_dedup == "corpus", ingest.url_dedup, near]
        return Dependencies(
            settings=[*settings, *([ingest.copies.model_dump()] if ingest.finds_copies else [])],
            inputs=[[name_of(shard.documents), shard.documents, shard.signatures] for shard in self.shards],
        )

    @property
    def shard_names(self) -> list[str]:
        """The names of the shards of this corpus."""
        return [name_of(shard.documents) for shard in self.shards if shard.is_own]

    @property
    def summary(self) -> Path:
        """The file that says which duplicates each shard has."""
        return self.workspace.shard_path(SUMMARIES, self.name, self.key)

    def paths(self) -> list[Path]:
        """Return the summary, and the files of the shards that have duplicates, as far as the summary is there."""
        root = self.workspace.root
        return [self.summary, *(root / file.path for file in self._listed(None) or [] if file.path)]

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
        return find_file(self, SUMMARIES, self.name, listing)

    def _listed(self, listing: Listing | None) -> list[StageFile] | None:
        """Return the shards' duplicates as the summary has them; None without a summary."""
        if (found := self.summarised(listing)) is None:
            return None
        return [_reference(row) for row in read_table(self.workspace.resolve(found)).to_pylist()]


def _reference(row: dict[str, Any]) -> StageFile:
    """Return the reference to a shard's list, from its row of the summary."""
    counts = {reason: row[reason] for reason in (NEAR, SAME_URL) if row[reason]}
    same = {name: row[name] for name in ("path", "rows", "bytes", "fingerprint")}
    return StageFile(stage=DedupJob.stage.name, name=row["shard"], **same, details=counts, cached=True)


def no_duplicates(shard: str) -> StageFile:
    """Return the reference to the duplicates of a shard that has none, for which nothing is read or written.

    Examples
    --------
    >>> no_duplicates("a").rows, no_duplicates("a").path
    (0, '')
    """
    none = {"shard": shard, "path": "", "rows": 0, "bytes": 0, "fingerprint": digest([shard, []])}
    return _reference(none | {NEAR: 0, SAME_URL: 0})


@stage_task
def dedup(job: DedupJob) -> None:
    """Write the list of every shard that has duplicates, where it is not there yet, and then the summary.

    The summary's details say what other thresholds would drop.

    Raises
    ------
    WorkspaceError
        If the memory limit is too little for DuckDB.
    """
    ingest, own, details = job.settings, job.settings.near_threshold, dict[str, Any]()
    make_folder(job.workspace.cache)
    spill = Path(tempfile.mkdtemp(prefix=".dedup-", suffix=".partial", dir=job.workspace.cache))
    with spilling_database(spill, job.memory_limit, f"{job.kind} {job.name}") as connection:
        compared = Comparison(connection, job.workspace, [one.documents for one in job.shards], ingest.copies)
        if ingest.exact_dedup == "corpus":
            compared.find_repeats()
        pairs = [PAIRS.empty_table(), *([compared.of_one_url()] if ingest.url_dedup else [])]
        if ingest.near_dedup == "minhash":
            signatures = [shard.signatures for shard in job.shards if shard.signatures is not None]
            words = Sketch.for_threshold(own).words
            pairs.append(compared.alike(signatures, words, min(own, *TRIED)))
        columns = [column.to_numpy() for column in pa.concat_tables(pairs).columns]

        def at(threshold: float) -> Dropped:
            is_alike = ~(columns[2] < threshold)  # also pages of one URL, which have no similarity
            return choose(*(column[is_alike] for column in columns))

        near = at(own)
        if ingest.near_dedup == "minhash":
            found = {one: near if one == own else at(one) for one in sorted({*TRIED, own})}
            tried = [{"threshold": one, **_least_similar(job, dropped)} for one, dropped in found.items()]
            details = {"threshold": own, "tried": tried if tried[0]["documents"] else []}
        _write_lists(job, _by_shard(job, connection, near), details)


def _least_similar(job: DedupJob, dropped: Dropped) -> dict[str, Any]:
    """Return how many near-duplicates are dropped, and the least similar of them beside the one kept for it."""
    similarity = dropped.similarity
    documents = int(np.count_nonzero(~np.isnan(similarity)))
    if not documents:
        return {"documents": 0}
    least, found = np.nanargmin(similarity), dict[str, Any]()
    for side, number in (("dropped", int(dropped.documents[least])), ("kept", int(dropped.kept[least]))):
        place, row = divmod(number, 2**ROW_BITS)
        found[side] = [name_of(job.shards[place].documents), row]
    return {"documents": documents, "similarity": float(similarity[least]), **found}


def _by_shard(
    job: DedupJob, connection: duckdb.DuckDBPyConnection, near: Dropped
) -> Iterator[list[tuple[str, pa.Table]]]:
    """Yield the names and the duplicates of the shards of this corpus, those of some neighbouring ones together."""
    similarity = pa.array(near.similarity, from_pandas=True)
    connection.register("near", pa.table([near.documents, near.kept, similarity], schema=PAIRS))
    names = pa.array([name_of(shard.documents) for shard in job.shards], pa.string())
    rows = [shard.documents.rows if isinstance(shard.documents, StageFile) else 0 for shard in job.shards]
    for places in track("shards", list(runs(rows, LISTED_ROWS)), part=(0.9, 1)):
        ends = {"first": places.start << ROW_BITS, "last": (places.stop << ROW_BITS) - 1}
        found = connection.sql(LISTED, params=ends).to_arrow_table().combine_chunks()
        starts = np.searchsorted(found["place"].to_numpy(), [*places, places.stop])
        columns = [found["row"], names.take(found["twin"].combine_chunks()), found["twin_row"], found["similarity"]]
        columns.append(pa.nulls(len(found)))
        table = pa.table(columns, names=DUPLICATES.names).cast(DUPLICATES)
        yield [
            (names[place].as_py(), table.slice(start, stop - start))
            for place, (start, stop) in zip(places, pairwise(starts.tolist()), strict=True)
            if job.shards[place].is_own
        ]


def _write_lists(job: DedupJob, portions: Iterable[list[tuple[str, pa.Table]]], details: dict[str, Any]) -> None:
    """Write the list of every shard, several at a time, and then the summary."""
    with stage_file_writer(job.summary, DUPLICATES_OF_SHARDS, job.key) as summary, ThreadPoolExecutor(WRITERS) as pool:
        for portion in portions:
            rows = list(pool.map(partial(_write_list, job), *zip(*portion, strict=True)) if portion else ())
            summary.write(pa.RecordBatch.from_pylist(rows, schema=DUPLICATES_OF_SHARDS))
        summary.details = details


def _write_list(job: DedupJob, shard: str, duplicates: pa.Table) -> dict[str, Any]:
    """Write a shard's duplicates, if it has any and they are not there yet; return its row of the summary.

    The fingerprint is of the rows alone: which copy is kept makes no difference to a selection.
    """
    rows, *twins = (column.to_pylist() for column in duplicates.columns)
    path, size = "", 0
    if rows:
        key = content_key(digest([shard, rows, *twins]))
        path = f"{job.folder}/{stage_file_name(shard, key)}"
        file = job.workspace.root / path
        if job.force or (footer := read_stage_footer(file)) is None or footer.key != key:
            with stage_file_writer(file, DUPLICATES, key) as writer:
                for batch in duplicates.combine_chunks().to_batches():
                    writer.write(batch)
        size = size_of(file) or 0
    near = len(duplicates) - duplicates["similarity"].null_count
    return {
        "shard": shard,
        "rows": len(rows),
        NEAR: near,
        SAME_URL: len(duplicates) - duplicates["twin_shard"].null_count - near,
        "path": path,
        "bytes": size,
        "fingerprint": digest([shard, rows]),
    }


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
