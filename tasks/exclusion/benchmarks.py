"""List the word n-grams of benchmark texts, so that ingest drops documents that hold one: `ingest.decontaminate`.

A text with 13 words in a row of a benchmark teaches a model its answers, and what it then scores there means little.
Benchmark texts of fewer words are found only where they are the whole document.
"""

from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa

from fineweb_mask.models.dedup.ngrams import ngram_hashes, places
from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.settings import SourceSettings
from fineweb_mask.tasks.source.discovery import SourceShard
from fineweb_mask.tasks.source.reader import ShardReader
from fineweb_mask.tasks.storage.atomic import atomic_write
from fineweb_mask.tasks.storage.parquet import read_table, write_table
from fineweb_mask.tasks.workspace.job import Dependencies, FolderJob, Stage, stage_task
from fineweb_mask.tasks.workspace.manifest import write_manifest

LISTED = pa.schema([pa.field("ngram", pa.uint64(), nullable=False), pa.field("benchmark", pa.string(), nullable=False)])


class BenchmarksJob(FolderJob):
    """List the n-grams of benchmark texts."""

    stage: ClassVar[Stage] = Stage("benchmarks", version=1, label="fit", folders=("fitted/benchmarks",), product=True)
    name: ClassVar[str] = "benchmarks"
    files: list[SourceShard]

    def depends_on(self) -> Dependencies:
        """Return the names and fingerprints of the files."""
        return Dependencies(settings=None, inputs=[[file.relative, file.fingerprint] for file in self.files])

    @property
    def path(self) -> Path:
        """The list."""
        return self.folder / "ngrams.parquet"


@stage_task
def list_benchmarks(job: BenchmarksJob) -> None:
    """Write every different n-gram, ascending, with the first text that holds it, named by its file and row.

    Raises
    ------
    BadShardError
        If a file is damaged, or has no column `text`.
    """
    hashes, names = [np.empty(0, dtype=np.uint64)], list[str]()
    for file in track("files", job.files, part=(0, 1)):
        reader = ShardReader(file, SourceSettings(path=file.url, extra_columns=[]))
        row = 0
        for batch, _ in reader.batches():
            for text in batch["text"].to_pylist():
                found = ngram_hashes(text or "")
                hashes.append(found)
                names += [f"{file.relative} row {row}"] * len(found)
                row += 1
    ngrams, first = np.unique(np.concatenate(hashes), return_index=True)
    texts = pa.array(names, pa.string()).take(pa.array(first))
    with atomic_write(job.path) as partial:
        write_table(pa.table([pa.array(ngrams), texts], schema=LISTED), partial)
    write_manifest(job.manifest_path, job.key, [job.path], {"rows": len(ngrams)})


class BenchmarkTexts:
    """The n-grams of a list that `list_benchmarks` wrote.

    Parameters
    ----------
    path
        The list.
    """

    def __init__(self, path: Path) -> None:
        table = read_table(path)
        self._ngrams = table["ngram"].to_numpy()
        self._names = table["benchmark"].combine_chunks()

    def overlaps(self, texts: list[str]) -> list[str | None]:
        """Return, for each text, a benchmark text with which it shares an n-gram, or None."""
        found = (places(ngram_hashes(text), self._ngrams) for text in texts)
        return [self._names[int(place[0])].as_py() if len(place) else None for place in found]


@lru_cache(maxsize=1)
def benchmark_texts(path: Path, fingerprint: str) -> BenchmarkTexts:  # noqa: ARG001 - another list has another
    """Return the n-grams of a list, read once by this process."""
    return BenchmarkTexts(path)
