"""List the texts that other corpora hold, so that ingest drops them: `ingest.against`.

The hash and the id of every document of those corpora are in memory while source files are ingested.
"""

from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa

from fineweb_mask.models.documents import content_hash, hash_halves
from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.schemas import MEASURED, SOURCE_ROW
from fineweb_mask.models.settings import SourceSettings
from fineweb_mask.tasks.source.discovery import SourceShard
from fineweb_mask.tasks.source.reader import ShardReader
from fineweb_mask.tasks.storage.atomic import atomic_write
from fineweb_mask.tasks.storage.parquet import DamagedFileError, VerifiedFile, read_table, write_table
from fineweb_mask.tasks.storage.remote.remote_file import open_source
from fineweb_mask.tasks.workspace.job import BadShardError, Dependencies, FolderJob, Stage, stage_task
from fineweb_mask.tasks.workspace.manifest import write_manifest

LISTED = pa.schema([pa.field("content_hash", pa.binary(16)), pa.field("id", pa.string())])


class KnownJob(FolderJob):
    """List the texts of other corpora."""

    stage: ClassVar[Stage] = Stage("known", version=1, label="fit", folders=("fitted/known",), product=True)
    name: ClassVar[str] = "known documents"
    files: list[SourceShard]

    def depends_on(self) -> Dependencies:
        """Return the names and fingerprints of the files."""
        return Dependencies(settings=None, inputs=[[file.relative, file.fingerprint] for file in self.files])

    @property
    def path(self) -> Path:
        """The list."""
        return self.folder / "documents.parquet"


@stage_task
def list_known(job: KnownJob) -> None:
    """Write the hash and the id of every document, in the order of the hashes.

    Raises
    ------
    BadShardError
        If a file is damaged.
    """
    parts = [_listed(file) for file in track("files", job.files, part=(0, 1))]
    table = pa.concat_tables(parts).sort_by("content_hash")
    with atomic_write(job.path) as partial:
        write_table(table, partial)
    write_manifest(job.manifest_path, job.key, [job.path], {"rows": len(table)})


def _listed(file: SourceShard) -> pa.Table:
    """Return the hashes and ids of a file's documents; one without an id is named by its file and row."""
    if (known := _hashed(file)) is not None:
        return known
    reader = ShardReader(file, SourceSettings(path=file.url, extra_columns=[]))
    batches, row = [], 0
    for batch, _ in reader.batches():
        texts, ids = batch["text"].to_pylist(), batch["id"].to_pylist()
        entries = [
            (content_hash(text), name or f"{file.relative} row {place}")
            for place, (text, name) in enumerate(zip(texts, ids, strict=True), row)
            if text is not None
        ]
        row += batch.num_rows
        hashes, names = [entry[0] for entry in entries], [entry[1] for entry in entries]
        batches.append(pa.record_batch([pa.array(hashes, pa.binary(16)), pa.array(names, pa.string())], schema=LISTED))
    return pa.Table.from_batches(batches, schema=LISTED)


def _hashed(file: SourceShard) -> pa.Table | None:
    """Return what a file of documents of a workspace holds already; None for any other file."""
    if file.format != "parquet":
        return None
    try:
        with open_source(file.url) as stream, VerifiedFile(stream, file.url) as documents:
            if not {SOURCE_ROW.name, *MEASURED.names} <= set(documents.schema_arrow.names):
                return None
            return documents.read(columns=LISTED.names).select(LISTED.names).cast(LISTED)
    except DamagedFileError as error:
        raise BadShardError(str(error)) from error


class KnownTexts:
    """The texts of a list that `list_known` wrote, by their hashes.

    Parameters
    ----------
    path
        The list.
    """

    def __init__(self, path: Path) -> None:
        table = read_table(path)
        self._ids = table["id"].combine_chunks()
        self._first, self._second = hash_halves(table["content_hash"].combine_chunks())

    def twins(self, hashes: list[bytes]) -> list[str | None]:
        """Return, for the hash of each text, the id of a document that has it, or None."""
        first, second = hash_halves(pa.array(hashes, pa.binary(16)))
        places = np.searchsorted(self._first, first)
        found = np.full(len(hashes), -1, dtype=np.int64)
        left = np.arange(len(hashes))
        while len(left):  # again only for hashes of which another has the same first half
            left = left[places[left] < len(self._first)]
            left = left[self._first[places[left]] == first[left]]
            equal = self._second[places[left]] == second[left]
            found[left[equal]] = places[left[equal]]
            left = left[~equal]
            places[left] += 1
        return [None if place < 0 else self._ids[place].as_py() for place in found.tolist()]


@lru_cache(maxsize=1)
def known_texts(path: Path, fingerprint: str) -> KnownTexts:  # noqa: ARG001 - another list has another
    """Return the texts of a list, read once by this process."""
    return KnownTexts(path)
