"""Hold documents out of a corpus before anything is selected, and find all documents that are too much like them.

Three kinds of texts are kept away from training: documents drawn from the corpus by a hash of their text, the user's
held-out files, and benchmarks. A document of the corpus is left out if it shares 13 words in a row with one of them, or
if its vector has a cosine of `near_duplicates.threshold` with that of a held-out document of the corpus.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fineweb_mask.models.analysis.vectors import nearest_cosines
from fineweb_mask.models.dedup.ngrams import COMMON, ngram_hashes, places
from fineweb_mask.models.errors import DataError
from fineweb_mask.models.probe.settings import GROUPS, POOL
from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.schemas import DUPLICATES
from fineweb_mask.tasks.source.discovery import SourceShard
from fineweb_mask.tasks.storage.atomic import atomic_write
from fineweb_mask.tasks.storage.parquet import read_schema, read_table, write_table
from fineweb_mask.tasks.witness.texts import corpus_texts, different_texts, host_of, texts_of
from fineweb_mask.tasks.workspace.job import Dependencies, FolderJob, Stage, find_file, stage_task
from fineweb_mask.tasks.workspace.listing import Listing
from fineweb_mask.tasks.workspace.manifest import write_manifest
from fineweb_mask.tasks.workspace.references import ShardFiles, StageFile
from fineweb_mask.tasks.workspace.stage_parquet import documents_of, duplicate_rows, stage_file_writer
from fineweb_mask.tasks.workspace.workspace import Workspace

FEWEST = 20
"""Documents of a held-out set, without which a difference means nothing."""
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


class HeldOutJob(FolderJob):
    """Draw the held-out documents of a corpus, read those of the user, and find what no model may be trained on."""

    stage: ClassVar[Stage] = Stage("hold_out", version=2, folders=("probe/held_out", "probe/excluded"))
    name: ClassVar[str] = "held-out documents"
    shards: list[ShardFiles]
    files: dict[str, list[SourceShard]]  # of the user's sets, by name
    benchmarks: list[SourceShard]
    by: str | None
    most: int  # documents of a set
    most_per_group: int
    share: float  # of the corpus, or of a group
    threshold: float  # the least cosine of near-duplicates

    def depends_on(self) -> Dependencies:
        """Return how documents are drawn and compared, and the fingerprints of the corpus and of the files."""
        shards = [(shard.documents, shard.duplicates, shard.embeddings) for shard in self.shards]
        settings = [self.by, self.most, self.most_per_group, self.share, self.threshold]
        return Dependencies(settings=settings, inputs=[shards, self.files, self.benchmarks])

    def current(self, listing: Listing | None = None) -> StageFile | None:
        """Return a reference to the documents if these and the rows that are left out are there, else None."""
        found = super().current(listing)
        return None if found is None or self.excluded() is None else found

    def excluded_path(self, shard: ShardFiles) -> Path:
        """Return the file of a shard's rows that no model may be trained on."""
        return self.workspace.shard_path(self.stage.folders[1], shard.name, self.key)

    def excluded(self) -> dict[str, StageFile] | None:
        """Return by shard the rows that no model may be trained on, a file each; None if one is not current."""
        files = {shard.name: find_file(self, self.stage.folders[1], shard.name, None) for shard in self.shards}
        found = {name: file for name, file in files.items() if file is not None}
        return found if len(found) == len(files) else None

    def paths(self) -> list[Path]:
        """Return the folder, and the files of the rows."""
        return [self.folder, *map(self.excluded_path, self.shards)]


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
    """Write the held-out documents, the n-grams of all texts that are kept away from training, and the rows like them.

    Raises
    ------
    DataError
        If a set has too few documents.
    """
    tables = [_drawn(job)]
    for name, files in job.files.items():
        tables.append(_of_files(name, files, job.most))
    documents = pa.concat_tables(tables)
    protected = [ngram_hashes(text) for text in documents["text"].to_pylist()]
    protected += [ngram_hashes(text) for text in texts_of(job.benchmarks)]
    ngrams = np.unique(np.concatenate(protected))
    counts, sharing = _search(job, ngrams)
    _exclude(job, documents, sharing)
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
        raise DataError(
            f"only {len(order):,} documents can be selected, and {job.share:.0%} of them are held out: at least "
            f"{FEWEST} are needed; use a larger corpus, or a larger share"
        )
    chosen = dict.fromkeys(order[:count].tolist(), POOL)
    for group in sorted({group for group in groups if group is not None}):
        members = order[groups[order] == group]
        for place in members[: min(job.most_per_group, int(job.share * len(members)))].tolist():
            chosen.setdefault(place, GROUPS)
    found = list[dict[str, Any]]()
    for index, shard in enumerate(job.shards):
        own = [place for place in sorted(chosen) if shards[place] == index]
        table = documents_of(job.workspace, shard.documents, rows[own], ["text", "url"])
        found += [
            {
                "set": chosen[place],
                "group": groups[place],
                "cluster": host_of(document["url"]) or f"{shard.name} {rows[place]}",
                "shard": shard.name,
                "row": rows[place],
                "text": document["text"],
            }
            for place, document in zip(own, table.to_pylist(), strict=True)
        ]
    return pa.Table.from_pylist(found, schema=HELD_OUT)


def _candidates(
    job: HeldOutJob,
) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64], NDArray[np.object_]]:
    """Return the rank, shard, row and group of every document but the duplicates; all groups are None without `by`."""
    parts = []
    for index, shard in enumerate(job.shards):
        path = job.workspace.resolve(shard.documents)
        by = [name for name in read_schema(path).names if name == job.by]
        table = read_table(path, columns=["content_hash", *by])
        rows = np.setdiff1d(np.arange(len(table)), duplicate_rows(job.workspace, shard.duplicates))
        table = table.take(pa.array(rows))
        hashes = [hashlib.blake2b(b"held out" + one, digest_size=8) for one in table["content_hash"].to_pylist()]
        ranks = np.array([int.from_bytes(one.digest()) for one in hashes], dtype=np.uint64)
        groups = table[by[0]].cast(pa.string()).to_pylist() if by else [None] * len(rows)
        parts.append((ranks, np.full(len(rows), index), rows, np.array(groups, dtype=object)))
    ranks, shards, rows, groups = map(np.concatenate, zip(*parts, strict=True))
    return ranks, shards, rows, groups


def _of_files(name: str, files: Sequence[SourceShard], most: int) -> pa.Table:
    """Return at most so many documents of the user's files, those with the smallest hashes."""
    texts = different_texts(files)[:most]
    if len(texts) < FEWEST:
        raise DataError(f"heldout {name}: it has {len(texts)} different documents, at least {FEWEST} are needed")
    rows = [{"set": name, "cluster": f"{name} {index}", "text": text} for index, text in enumerate(texts)]
    return pa.Table.from_pylist(rows, schema=HELD_OUT)


def _search(job: HeldOutJob, ngrams: NDArray[np.uint64]) -> tuple[NDArray[np.int64], list[list[int]]]:
    """Return how many documents of the corpus hold each n-gram, (m,), and by shard the rows with one that is rare.

    Of an n-gram no more rows are remembered than make it a common phrase.
    """
    counts = np.zeros(len(ngrams), dtype=np.int64)
    found = []
    for shard in track("shards searched for shared words", job.shards, part=(0, 0.9)):
        held = list[tuple[int, NDArray[np.intp]]]()
        for row, text in enumerate(corpus_texts(job.workspace, shard.documents)):
            at = places(ngram_hashes(text), ngrams)
            counts[at] += 1
            held += [(row, rare)] if len(rare := at[counts[at] <= COMMON]) else []
        found.append(held)
    return counts, [[row for row, at in held if (counts[at] <= COMMON).any()] for held in found]


def _exclude(job: HeldOutJob, documents: pa.Table, sharing: list[list[int]]) -> None:
    """Write each shard's rows that are duplicates, held out, near-duplicates of held-out documents, or share n-grams.

    `details` count them by the first reason that holds.
    """
    held_out = {
        shard.name: documents.filter(pc.equal(documents["shard"], shard.name))["row"].to_numpy() for shard in job.shards
    }
    drawn = [_unit(job.workspace, shard.embeddings)[rows] for shard in job.shards if len(rows := held_out[shard.name])]
    others = np.concatenate(drawn)
    for shard, shared in zip(track("shards compared", job.shards, part=(0.9, 1)), sharing, strict=True):
        reasons = {
            "duplicate": duplicate_rows(job.workspace, shard.duplicates),
            "held_out": held_out[shard.name],
            "near_duplicate": nearest_cosines(_unit(job.workspace, shard.embeddings), others) >= job.threshold,
            "shared_words": np.array(shared, dtype=np.int64),
        }
        excluded, counts = np.zeros(shard.rows, dtype=bool), {}
        for reason, rows in reasons.items():
            counts[reason] = int((~excluded[rows]).sum())
            excluded[rows] = True
        with stage_file_writer(job.excluded_path(shard), DUPLICATES, job.key) as writer:
            writer.write(pa.record_batch([pa.array(np.flatnonzero(excluded).astype(np.uint32))], schema=DUPLICATES))
            writer.details = {"excluded": counts, "documents": shard.rows}


def _unit(workspace: Workspace, file: StageFile) -> NDArray[np.float32]:
    """Return a shard's vectors with length 1, (rows, d); a document without a vector has zeros."""
    from fineweb_mask.models.embedding.arrow import vectors_of

    vectors, has_vector = vectors_of(read_table(workspace.resolve(file)))
    vectors = np.where(has_vector[:, None], vectors, 0).astype(np.float32)
    unit: NDArray[np.float32] = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return unit


def excluded_counts(files: Mapping[str, StageFile]) -> dict[str, int]:
    """Return how many documents were left out, by reason, over all shards."""
    counts = Counter[str]()
    for file in files.values():
        counts.update(file.details["excluded"])
    return dict(counts)
