"""Hold documents out of a corpus before anything is selected, and find all documents that are too much like them.

Three kinds of texts are kept away from training: documents drawn from the corpus by a hash of their text, the user's
held-out files, and benchmarks. A document of the corpus is left out if it shares 13 words in a row with one of them, or
if its vector has a cosine of `near_duplicates.threshold` with that of a held-out document of the corpus.
"""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fineweb_mask.models.dedup.ngrams import COMMON, ngram_hashes, places
from fineweb_mask.models.errors import DataError
from fineweb_mask.models.probe.settings import GROUPS, POOL
from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.schemas import DUPLICATES
from fineweb_mask.tasks.probe.texts import corpus_texts, texts_of
from fineweb_mask.tasks.source.discovery import SourceShard
from fineweb_mask.tasks.source.texts import documents_of
from fineweb_mask.tasks.storage.atomic import atomic_write
from fineweb_mask.tasks.storage.parquet import read_schema, read_table, write_table
from fineweb_mask.tasks.workspace.job import Dependencies, FolderJob, ShardJob, Stage, stage_task
from fineweb_mask.tasks.workspace.manifest import write_manifest
from fineweb_mask.tasks.workspace.references import StageFile
from fineweb_mask.tasks.workspace.shard_files import ShardFiles, duplicate_rows
from fineweb_mask.tasks.workspace.stage_parquet import stage_file_writer
from fineweb_mask.tasks.workspace.workspace import Workspace

FEWEST = 20
"""Documents of a held-out set, without which a difference means nothing."""
COSINES_AT_ONCE = 1 << 24
"""Cosines that are computed at one time."""
HELD_OUT = pa.schema(
    [
        pa.field("set", pa.string(), nullable=False),
        pa.field("group", pa.string()),  # of a document of the corpus, with `by`
        pa.field("cluster", pa.string(), nullable=False),  # host of the page, else the document itself
        pa.field("shard", pa.string()),  # of a document of the corpus, as is the next
        pa.field("row", pa.uint32()),
        pa.field("text", pa.string(), nullable=False),
    ]
)


class HeldOutError(DataError):
    """There is too little to hold out; the message says what to change."""


class HeldOutJob(FolderJob):
    """Draw the held-out documents of a corpus, read those of the user, and hash what no model may be trained on."""

    stage: ClassVar[Stage] = Stage("hold_out", version=1, folders=("probe/held_out",), product=True)
    name: ClassVar[str] = "held-out documents"
    shards: list[ShardFiles]
    files: dict[str, list[SourceShard]]  # of the user's sets, by name
    benchmarks: list[SourceShard]
    by: str | None
    most: int  # documents of a set
    most_per_group: int
    share: float  # of the corpus, or of a group

    def depends_on(self) -> Dependencies:
        """Return how documents are drawn, and the fingerprints of the corpus and of the files."""
        return Dependencies(
            settings=[self.by, self.most, self.most_per_group, self.share],
            inputs=[
                [[shard.documents.fingerprint, shard.duplicates.fingerprint] for shard in self.shards],
                {name: [file.fingerprint for file in files] for name, files in self.files.items()},
                [file.fingerprint for file in self.benchmarks],
            ],
        )


class HeldOut(NamedTuple):
    """What `HeldOutJob` writes."""

    documents: pa.Table  # `HELD_OUT`
    ngrams: NDArray[np.uint64]  # (m,), ascending

    @classmethod
    def read(cls, workspace: Workspace, file: StageFile) -> "HeldOut":
        """Read the held-out documents and the n-grams."""
        folder = workspace.resolve(file).parent
        return cls(read_table(folder / "documents.parquet"), np.load(folder / "ngrams.npy"))


@stage_task
def hold_out(job: HeldOutJob) -> None:
    """Write the held-out documents and the n-grams of all texts that are kept away from training.

    Raises
    ------
    HeldOutError
        If a set has too few documents.
    """
    tables = [_drawn(job)]
    for name, files in job.files.items():
        tables.append(_of_files(name, texts_of(files), job.most))
    documents = pa.concat_tables(tables)
    protected = [ngram_hashes(text) for text in documents["text"].to_pylist()]
    protected += [ngram_hashes(text) for text in texts_of(job.benchmarks)]
    ngrams = np.unique(np.concatenate(protected))
    counts = np.zeros(len(ngrams), dtype=np.int64)
    for shard in track("shards searched for common phrases", job.shards, part=(0, 1)):
        for texts in corpus_texts(job.workspace, shard.documents):
            for text in texts.to_pylist():
                counts[places(ngram_hashes(text), ngrams)] += 1
    path = job.folder / "documents.parquet"
    with atomic_write(path) as partial:
        write_table(documents, partial)
    ngrams_path = job.folder / "ngrams.npy"
    with atomic_write(ngrams_path) as partial, partial.open("wb") as stream:
        np.save(stream, ngrams[counts <= COMMON])
    of_sets = {str(entry["values"]): int(entry["counts"]) for entry in documents["set"].value_counts().to_pylist()}
    details = {"rows": len(documents), "sets": of_sets, "common_ngrams": int((counts > COMMON).sum())}
    write_manifest(job.manifest_path, job.key, [path, ngrams_path], details)


def _drawn(job: HeldOutJob) -> pa.Table:
    """Return the documents held out of the corpus: those with the smallest hashes of all, and of each group."""
    ranks, shards, rows, groups = _candidates(job)
    order = np.argsort(ranks, kind="stable")
    count = min(job.most, int(job.share * len(order)))
    if count < FEWEST:
        raise HeldOutError(
            f"only {len(order):,} documents can be selected, and {job.share:.0%} of them are held out: at least "
            f"{FEWEST} are needed; use a larger corpus, or a larger share"
        )
    chosen = {int(place): POOL for place in order[:count]}
    if job.by is not None:
        for group in sorted({group for group in groups if group is not None}):
            members = [int(place) for place in order if groups[place] == group]
            for place in members[: min(job.most_per_group, int(job.share * len(members)))]:
                chosen.setdefault(place, GROUPS)
    parts = []
    for index, shard in enumerate(job.shards):
        own = [place for place in sorted(chosen) if shards[place] == index]
        of_own = rows[own]
        table = documents_of(job.workspace, shard.documents, of_own.astype(np.int64), ["text", "url"])
        hosts = [_host(url) for url in table["url"].to_pylist()]
        clusters = [host or f"{shard.name} {row}" for host, row in zip(hosts, of_own, strict=True)]
        sets, of_groups = [chosen[place] for place in own], [groups[place] for place in own]
        names = [shard.name] * len(own)
        parts.append(_table([sets, of_groups, clusters, names, of_own, table["text"].to_pylist()]))
    return pa.concat_tables(parts)


def _candidates(
    job: HeldOutJob,
) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.uint32], list[str | None]]:
    """Return the rank, shard, row and group of every document that is no duplicate."""
    ranks: list[int] = []
    shards: list[int] = []
    rows: list[int] = []
    groups: list[str | None] = []
    for index, shard in enumerate(job.shards):
        path = job.workspace.resolve(shard.documents)
        columns = ["content_hash"]
        if job.by is not None and job.by in read_schema(path).names:
            columns.append(job.by)
        table = read_table(path, columns=columns)
        keep = np.ones(len(table), dtype=bool)
        keep[duplicate_rows(job.workspace, shard.duplicates)] = False
        kept = np.flatnonzero(keep)
        hashes = table["content_hash"].take(pa.array(kept)).to_pylist()
        ranks += [int.from_bytes(hashlib.blake2b(b"held out" + one, digest_size=8).digest()) for one in hashes]
        shards += [index] * len(kept)
        rows += kept.tolist()
        of_shard = table[job.by].cast(pa.string()).take(pa.array(kept)).to_pylist() if len(columns) > 1 else []
        groups += of_shard or [None] * len(kept)
    return np.array(ranks, dtype=np.uint64), np.array(shards), np.array(rows, dtype=np.uint32), groups


def _host(url: str | None) -> str | None:
    try:
        return urlsplit(url or "").hostname
    except ValueError:
        return None


def _of_files(name: str, texts: Iterator[str], most: int) -> pa.Table:
    """Return at most so many documents of the user's files, those with the smallest hashes."""
    ranked = sorted({hashlib.blake2b(text.encode(), digest_size=8).digest(): text for text in texts}.items())[:most]
    if len(ranked) < FEWEST:
        raise HeldOutError(f"heldout {name}: it has {len(ranked)} different documents, at least {FEWEST} are needed")
    columns = [
        [name] * len(ranked),
        [None] * len(ranked),
        [f"{name} {index}" for index in range(len(ranked))],
        [None] * len(ranked),
        [None] * len(ranked),
        [text for _, text in ranked],
    ]
    return _table(columns)


def _table(columns: list[Any]) -> pa.Table:
    return pa.table([pa.array(one, field.type) for one, field in zip(columns, HELD_OUT, strict=True)], schema=HELD_OUT)


class ExcludeJob(ShardJob):
    """Find the documents of a shard that no arm may select."""

    stage: ClassVar[Stage] = Stage("exclude", version=1, folders=("probe/excluded",))
    shard: ShardFiles
    embeddings: list[StageFile]  # of all shards that held-out documents come from
    held_out: StageFile
    threshold: float

    @property
    def name(self) -> str:
        """The name of the shard."""
        return self.shard.name

    def depends_on(self) -> Dependencies:
        """Return the least cosine of a near-duplicate, and the fingerprints of what is compared."""
        return Dependencies(
            settings=self.threshold,
            inputs=[
                self.shard.documents.fingerprint,
                self.shard.duplicates.fingerprint,
                [file.fingerprint for file in self.embeddings],
                self.held_out.fingerprint,
            ],
        )


@stage_task
def exclude(job: ExcludeJob) -> None:
    """Write the rows that are duplicates, held out, near-duplicates of held-out documents, or share n-grams with them.

    `details` count them by the first reason that holds.
    """
    held_out = HeldOut.read(job.workspace, job.held_out)
    n = job.shard.rows
    reasons: dict[str, NDArray[np.bool_]] = {name: np.zeros(n, dtype=bool) for name in ("duplicate", "held_out")}
    reasons["duplicate"][duplicate_rows(job.workspace, job.shard.duplicates)] = True
    own = held_out.documents.filter(pc.equal(held_out.documents["shard"], job.name))
    reasons["held_out"][own["row"].to_numpy()] = True
    reasons["near_duplicate"] = _near(job, held_out)
    reasons["shared_words"] = np.zeros(n, dtype=bool)
    row = 0
    for texts in corpus_texts(job.workspace, job.shard.documents):
        for text in texts.to_pylist():
            reasons["shared_words"][row] = len(places(ngram_hashes(text), held_out.ngrams)) > 0
            row += 1
    excluded = np.zeros(n, dtype=bool)
    counts = {}
    for name, rows in reasons.items():
        counts[name] = int((rows & ~excluded).sum())
        excluded |= rows
    with stage_file_writer(job.output, DUPLICATES, job.key) as writer:
        writer.write(pa.record_batch([pa.array(np.flatnonzero(excluded).astype(np.uint32))], schema=DUPLICATES))
        writer.details = {"excluded": counts, "documents": n}


def _near(job: ExcludeJob, held_out: HeldOut) -> NDArray[np.bool_]:
    """Return which rows have a cosine of the threshold or more with a held-out document of the corpus."""
    vectors = _unit(job.workspace, job.shard.embeddings)
    known = []
    for file in job.embeddings:
        rows = held_out.documents.filter(pc.equal(held_out.documents["shard"], file.name))["row"].to_numpy()
        if len(rows):
            known.append(_unit(job.workspace, file)[rows])
    if not known:
        return np.zeros(len(vectors), dtype=bool)
    others = np.concatenate(known)
    near = np.zeros(len(vectors), dtype=bool)
    step = max(1, COSINES_AT_ONCE // len(others))
    for start in track("rows compared", range(0, len(vectors), step)):
        near[start : start + step] = (vectors[start : start + step] @ others.T >= job.threshold).any(1)
    return near


def _unit(workspace: Workspace, file: StageFile) -> NDArray[np.float32]:
    """Return a shard's vectors with length 1, (rows, d); a document without a vector has zeros."""
    from fineweb_mask.models.embedding.arrow import vectors_of

    vectors, has_vector = vectors_of(read_table(workspace.resolve(file)))
    vectors = np.where(has_vector[:, None], vectors, 0).astype(np.float32)
    unit: NDArray[np.float32] = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return unit


def excluded_counts(files: Mapping[str, StageFile]) -> dict[str, int]:
    """Return how many documents were left out, by reason, over all shards."""
    counts: dict[str, int] = {}
    for file in files.values():
        for reason, rows in file.details["excluded"].items():
            counts[reason] = counts.get(reason, 0) + rows
    return counts
