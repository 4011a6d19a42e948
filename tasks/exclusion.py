"""List what other corpora and benchmarks hold, so that ingest drops it: `ingest.against`, `ingest.decontaminate`.

Of other corpora, the hash and the id of every document are listed; of benchmarks, the parts of their items, with what
their words and phrases weigh: this is taken from the benchmarks and from the first documents of some source files, when
the list is made, so that files which come later change no decision. A text that holds an item teaches a model its
answer, and what it then scores there means little. The lists are in memory while source files are ingested.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import count, islice
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from fineweb_mask.models.dedup.benchmark_items import PARTS, BenchmarkItems, Part, parts_of, weigh
from fineweb_mask.models.documents import content_hash
from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.settings import SourceSettings
from fineweb_mask.tasks.source.columns import ColumnError, known_columns
from fineweb_mask.tasks.source.discovery import SourceShard
from fineweb_mask.tasks.source.reader import ShardReader
from fineweb_mask.tasks.storage.atomic import atomic_write
from fineweb_mask.tasks.storage.parquet import read_table
from fineweb_mask.tasks.workspace.job import BadShardError, Dependencies, ProductJob, Stage, stage_task
from fineweb_mask.tasks.workspace.manifest import write_manifest

logger = logging.getLogger(__name__)

DOCUMENTS = pa.schema([pa.field("content_hash", pa.binary(16)), pa.field("id", pa.string())])
FILES = {"known": "documents.parquet", "benchmarks": "items.parquet"}
COLUMNS = {
    "text": ("text",),
    "question": ("question", "prompt", "problem"),
    "passage": ("passage", "context", "article"),
    "answer": ("answer", "target", "solution"),
}
"""Names that the columns of benchmarks have, by what they hold; of several in a file the first counts."""
SAMPLED_DOCUMENTS = 10_000
"""First documents of some source files, together, by which it is known what is rare."""
SAME = 0.5
"""Share of the sample that holds items from which the benchmarks are the corpus itself."""


class ExclusionJob(ProductJob):
    """List the documents of other corpora, or the items of benchmarks."""

    stage: ClassVar[Stage] = Stage("exclusion", version=2, label="fit", folders=("fitted/known", "fitted/benchmarks"))
    of: Literal["known", "benchmarks"]
    files: list[SourceShard]
    sample: list[SourceShard] = Field(default_factory=list)  # files of the corpus; not in the key
    text_column: str = "text"

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
        settings = None if self.of == "known" else "items"
        return Dependencies(settings=settings, inputs=[[file.relative, file.fingerprint] for file in self.files])

    @property
    def path(self) -> Path:
        """The list."""
        return self.folder / FILES[self.of]


@stage_task
def list_excluded(job: ExclusionJob) -> None:
    """Write the hash and the id of every document, in the order of the hashes, or the items of benchmarks.

    Raises
    ------
    BadShardError
        If a file is damaged.
    SettingsError
        If a file of a benchmark has no items, or most of the corpus holds some.
    """
    files = track("files", job.files, part=(0, 1))
    if job.of == "known":
        table = pa.concat_tables(map(_documents, files)).sort_by("content_hash")
    else:
        table = _weighed(job, [part for file in files for part in parts_in(file)])
    with atomic_write(job.path) as partial:
        pq.write_table(table, partial, write_page_checksum=True)
    write_manifest(job.manifest_path, job.key, [job.path], {"rows": len(table)})


def _weighed(job: ExclusionJob, parts: list[Part]) -> pa.Table:
    """Return the parts that are looked for, if there are any, and most of the sample holds none."""
    each = -(-SAMPLED_DOCUMENTS // max(1, len(job.sample)))
    texts = [text for file in job.sample for text in _first_texts(file, job.text_column, each)]
    if not parts:
        raise SettingsError(
            "ingest.decontaminate: no question, passage or text of these files has at least four words: "
            "give other files, or leave it out"
        )
    table = weigh(parts, texts)
    if 2 * len(table) < len(parts):
        logger.warning(
            "ingest.decontaminate: only %s of %s parts of items are looked for: "
            "the others are phrases of many documents, or short and of common words",
            f"{len(table):,}",
            f"{len(parts):,}",
        )
    found = sum(name is not None for name in BenchmarkItems(table).overlaps(texts))
    if found > SAME * len(texts):
        raise SettingsError(
            f"ingest.decontaminate: {found:,} of {len(texts):,} documents of the source hold items of these files, "
            "which seem to be the corpus itself: give files of benchmarks, or name a corpus in ingest.against"
        )
    return table


def _first_texts(file: SourceShard, text_column: str, most: int) -> list[str]:
    """Return the first texts of a file, none if it cannot be read."""
    with suppress(BadShardError):
        source = SourceSettings(path=file.url, text_column=text_column, extra_columns=[])
        texts = (text for batch, _ in ShardReader(file, source).batches() for text in batch["text"].to_pylist())
        return list(islice(filter(None, texts), most))
    return []


def check_benchmarks(files: Sequence[SourceShard]) -> None:
    """Check that files of benchmarks can be read and hold items.

    Raises
    ------
    ColumnError
        If one cannot, has no rows, or has no column of a question, a passage or a text.
    """
    for file in files:
        _benchmark_columns(file)


def _benchmark_columns(file: SourceShard) -> dict[str, str]:
    """Return the columns of a file's items by what they hold, first one of texts that are looked for."""
    setting = f"ingest.decontaminate: {file.relative}"
    schema, rows, _ = known_columns(file, "ingest.decontaminate")
    known = {part: [name for name in names if name in schema.names] for part, names in COLUMNS.items()}
    found = {part: names[0] for part, names in known.items() if names}
    if rows == 0:
        raise ColumnError(f"{setting} has no rows: give files with items, or leave it out")
    if not found.keys() & set(PARTS):
        raise ColumnError(
            f"{setting} has no column {', '.join(map(repr, PARTS))}, its columns are {', '.join(schema.names)}: "
            "name its columns so"
        )
    return found


def _documents(file: SourceShard) -> pa.Table:
    """Return the hashes and ids of a file's documents; one without an id is named by its file and row."""
    batches, rows = [], count()
    for batch, _ in ShardReader(file, SourceSettings(path=file.url, extra_columns=[])).batches():
        documents = zip(batch["text"].to_pylist(), batch["id"].to_pylist(), rows, strict=False)
        entries = [
            {"content_hash": content_hash(text), "id": name or f"{file.relative} row {row}"}
            for text, name, row in documents
            if text is not None
        ]
        batches.append(pa.RecordBatch.from_pylist(entries, schema=DOCUMENTS))
    return pa.Table.from_batches(batches, schema=DOCUMENTS)


def parts_in(file: SourceShard) -> Iterator[Part]:
    """Yield the parts of a file's items, each named by the file, the row, and which part it is."""
    (first, name), *others = _benchmark_columns(file).items()
    extra = dict(others)
    source = SourceSettings(path=file.url, text_column=name, extra_columns=list(extra.values()))
    columns = tuple((column, "string") for column in extra.values())  # answers may be numbers or lists
    as_text = file.model_copy(update={"columns": columns})
    row = count()
    for batch, _ in ShardReader(as_text, source).batches():
        texts = [batch["text"].to_pylist(), *(batch[column].to_pylist() for column in extra.values())]
        for values in zip(*texts, strict=True):
            yield from parts_of(f"{file.relative} row {next(row)}", dict(zip([first, *extra], values, strict=True)))


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


@lru_cache(maxsize=1)
def known_texts(path: Path, fingerprint: str) -> KnownTexts:  # noqa: ARG001 - another list has another
    """Return the texts of a list, read once by this process."""
    return KnownTexts(read_table(path))


@lru_cache(maxsize=1)
def benchmark_items(path: Path, fingerprint: str) -> BenchmarkItems:  # noqa: ARG001 - as above
    """Return the items of a list, read once by this process."""
    return BenchmarkItems(read_table(path))
