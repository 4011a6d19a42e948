"""List what other corpora and benchmarks hold, so that ingest drops it: `ingest.against`, `ingest.decontaminate`.

Of other corpora, the hash and the id of every document are listed; of benchmarks, the word n-grams of their texts. A
text with 13 words in a row of a benchmark teaches a model its answers, and what it then scores there means little.
Benchmark texts of fewer words are found only where they are the whole document. The lists are in memory while source
files are ingested.
"""

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Literal, TypeVar

import numpy as np
import pyarrow as pa

from fineweb_mask.models.dedup.ngrams import ngram_hashes, places
from fineweb_mask.models.documents import content_hash
from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.schemas import MEASURED, SOURCE_ROW
from fineweb_mask.models.settings import SourceSettings
from fineweb_mask.tasks.source.discovery import SourceShard
from fineweb_mask.tasks.source.reader import ShardReader
from fineweb_mask.tasks.storage.atomic import atomic_write
from fineweb_mask.tasks.storage.parquet import DamagedFileError, VerifiedFile, read_table, write_table
from fineweb_mask.tasks.storage.remote.filesystem import open_source
from fineweb_mask.tasks.workspace.job import BadShardError, Dependencies, FolderJob, Stage, stage_task
from fineweb_mask.tasks.workspace.manifest import write_manifest

DOCUMENTS = pa.schema([pa.field("content_hash", pa.binary(16)), pa.field("id", pa.string())])
NGRAMS = pa.schema([pa.field("ngram", pa.uint64(), nullable=False), pa.field("benchmark", pa.string(), nullable=False)])
FILES = {"known": "documents.parquet", "benchmarks": "ngrams.parquet"}

Texts = TypeVar("Texts", "KnownTexts", "BenchmarkTexts")


class ExclusionJob(FolderJob):
    """List the documents of other corpora, or the n-grams of benchmark texts."""

    stage: ClassVar[Stage] = Stage(
        "exclusion", version=1, label="fit", folders=("fitted/known", "fitted/benchmarks"), product=True
    )
    of: Literal["known", "benchmarks"]
    files: list[SourceShard]

    @property
    def kind(self) -> str:
        """What is listed."""
        return self.of

    @property
    def name(self) -> str:
        """What is listed, for a reader."""
        return "known documents" if self.of == "known" else self.of

    @property
    def folder_name(self) -> str:
        """The folder of the list in the workspace, without the tag of the key."""
        return f"fitted/{self.of}"

    def depends_on(self) -> Dependencies:
        """Return the names and fingerprints of the files."""
        return Dependencies(settings=None, inputs=[[file.relative, file.fingerprint] for file in self.files])

    @property
    def path(self) -> Path:
        """The list."""
        return self.folder / FILES[self.of]


@stage_task
def list_excluded(job: ExclusionJob) -> None:
    """Write the hash and the id of every document, in the order of the hashes, or the n-grams of benchmarks.

    Every different n-gram is written, ascending, with the first text that holds it, named by its file and row.

    Raises
    ------
    BadShardError
        If a file is damaged, or one of a benchmark has no column `text`.
    """
    read = _documents if job.of == "known" else _ngrams
    table = pa.concat_tables(read(file) for file in track("files", job.files, part=(0, 1)))
    if job.of == "known":
        table = table.sort_by("content_hash")
    else:
        _, first = np.unique(table["ngram"].to_numpy(), return_index=True)
        table = table.take(pa.array(first)).combine_chunks()
    with atomic_write(job.path) as partial:
        write_table(table, partial)
    write_manifest(job.manifest_path, job.key, [job.path], {"rows": len(table)})


def _batches(file: SourceShard) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the texts and ids of a file batch by batch, each with the number of its first row."""
    row = 0
    for batch, _ in ShardReader(file, SourceSettings(path=file.url, extra_columns=[])).batches():
        yield row, batch
        row += batch.num_rows


def _documents(file: SourceShard) -> pa.Table:
    """Return the hashes and ids of a file's documents; one without an id is named by its file and row."""
    if (known := _hashed(file)) is not None:
        return known
    batches = []
    for first, batch in _batches(file):
        rows = enumerate(zip(batch["text"].to_pylist(), batch["id"].to_pylist(), strict=True), first)
        entries = [
            {"content_hash": content_hash(text), "id": name or f"{file.relative} row {row}"}
            for row, (text, name) in rows
            if text is not None
        ]
        batches.append(pa.RecordBatch.from_pylist(entries, schema=DOCUMENTS))
    return pa.Table.from_batches(batches, schema=DOCUMENTS)


def _hashed(file: SourceShard) -> pa.Table | None:
    """Return what a file of documents of a workspace holds already; None for any other file."""
    if file.format != "parquet":
        return None
    try:
        with open_source(file.url) as stream, VerifiedFile(stream, file.url) as documents:
            if not {SOURCE_ROW.name, *MEASURED.names} <= set(documents.schema_arrow.names):
                return None
            return documents.read(columns=DOCUMENTS.names).select(DOCUMENTS.names).cast(DOCUMENTS)
    except DamagedFileError as error:
        raise BadShardError(str(error)) from error


def _ngrams(file: SourceShard) -> pa.Table:
    """Return the n-grams of a file's texts, each with its file and row."""
    hashes, names = [np.empty(0, dtype=np.uint64)], list[str]()
    for first, batch in _batches(file):
        for row, text in enumerate(batch["text"].to_pylist(), first):
            found = ngram_hashes(text or "")
            hashes.append(found)
            names += [f"{file.relative} row {row}"] * len(found)
    return pa.table([np.concatenate(hashes), pa.array(names, pa.string())], schema=NGRAMS)


class KnownTexts:
    """The documents of other corpora that a list holds, by the hashes of their texts."""

    def __init__(self, listed: pa.Table) -> None:
        self._ids = listed["id"].combine_chunks()
        hashes = listed["content_hash"].combine_chunks()  # in order; all are as long, so no zero at the end is lost
        self._hashes = np.frombuffer(hashes.buffers()[1] or b"", "S16")[hashes.offset :][: len(hashes)]

    def copies(self, hashes: list[bytes]) -> list[str | None]:
        """Return, for the hash of each text, the id of a document that has it, or None."""
        wanted = np.array(hashes, dtype="S16")
        places = np.searchsorted(self._hashes, wanted)
        ends = np.searchsorted(self._hashes, wanted, side="right")
        return [self._ids[place].as_py() if place < end else None for place, end in zip(places, ends, strict=True)]


class BenchmarkTexts:
    """The n-grams of benchmark texts that a list holds."""

    def __init__(self, listed: pa.Table) -> None:
        self._ngrams = listed["ngram"].to_numpy()
        self._names = listed["benchmark"].combine_chunks()

    def overlaps(self, texts: list[str]) -> list[str | None]:
        """Return, for each text, a benchmark text with which it shares an n-gram, or None."""
        found = (places(ngram_hashes(text), self._ngrams) for text in texts)
        return [self._names[int(place[0])].as_py() if len(place) else None for place in found]


@lru_cache(maxsize=2)  # one of each kind
def excluded_texts(kind: type[Texts], path: Path, fingerprint: str) -> Texts:  # noqa: ARG001 - another list has another
    """Return the texts of a list, `KnownTexts` or `BenchmarkTexts`, read once by this process."""
    return kind(read_table(path))
