"""Write the dataset's files of one partition.

A partition is some shards, one after the other in the order of their names, whose selected rows become separate dataset
files: one, or a few, in each folder of the layout. It is made in one pass over its shards, by a job that holds only
their references, with a separate DuckDB; its output depends on no other partition, so partitions run in any order,
several at a time, and a run that was killed writes only those that it had not finished. `Parts` keeps them.

Before a partition is kept, its files are read back: their rows and tokens must be those that the masks select.
"""

import base64
import shutil
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar

import duckdb
import numpy as np
import pyarrow as pa

from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.models.runtime.progress import track_by_size
from fineweb_mask.models.settings import MaterializeSettings
from fineweb_mask.tasks.catalog.spilling import spilling_database
from fineweb_mask.tasks.dataset.output import MATERIALIZE
from fineweb_mask.tasks.dataset.parts import DATA, MANIFEST, Parts
from fineweb_mask.tasks.dataset.rows import SelectedDocuments, ShardPaths
from fineweb_mask.tasks.dataset.writers import WRITERS, Written, read_back
from fineweb_mask.tasks.inference.prefetch import background_writer
from fineweb_mask.tasks.source.discovery import SourceShard
from fineweb_mask.tasks.source.texts import TextSource, write_with_texts
from fineweb_mask.tasks.storage.atomic import tree_files
from fineweb_mask.tasks.storage.parquet import DamagedFileError, read_table
from fineweb_mask.tasks.workspace.job import Dependencies, Stage, StageJob, stage_task
from fineweb_mask.tasks.workspace.listing import Listing
from fineweb_mask.tasks.workspace.manifest import manifest_reference, write_manifest
from fineweb_mask.tasks.workspace.references import StageFile, digest
from fineweb_mask.tasks.workspace.shard_files import ShardFiles
from fineweb_mask.tasks.workspace.stage_parquet import read_fingerprint
from fineweb_mask.tasks.workspace.workspace import Workspace

NO_FOOTER = "it is missing, or its footer cannot be read"
IN_FILES = {"layout", "format", "file_size", "row_group_size", "shuffle", "seed"}
"""Settings on which the bytes or names of the files depend."""


class PartitionJob(StageJob):
    """Write the dataset files of a partition."""

    stage: ClassVar[Stage] = Stage("partition", version=3, label=MATERIALIZE, run_with=(MATERIALIZE,))
    settings: MaterializeSettings
    version: str  # of the dataset that is made; no partition depends on it
    number: int
    partitions: int  # of the dataset
    shards: list[ShardFiles]
    sources: list[SourceShard]  # of the shards
    columns: str  # of the documents of all shards: an Arrow schema, in base64
    corpus: str  # digest of the source's files: two corpora share no part, since a part is removed when it is used
    at_once: int = 1  # jobs that share the memory and the threads

    @property
    def name(self) -> str:
        """The number of the partition."""
        return f"{self.number:05d}"

    @property
    def parts(self) -> Parts:
        """Where the files are kept until all partitions are written."""
        return Parts.of(self.workspace, self.settings, self.version)

    def depends_on(self) -> Dependencies:
        """Return the settings that change the files' bytes or names, and the files that are read."""
        settings = self.settings.digested(include=IN_FILES)
        return Dependencies(
            settings=[settings, self.number, self.partitions, 0],
            inputs=[fingerprints(self.shards), self.columns, self.corpus],
        )

    def current(self, listing: Listing | None = None) -> StageFile | None:  # noqa: ARG002 - manifests are small
        """Return a reference to the part if it is whole, else None; its details are only in its manifest."""
        manifest = self.parts.found(self.key)
        if manifest is None:
            return None
        reference = manifest_reference(self.workspace, self.parts.manifest_path(self.key), self.name, manifest)
        return reference.model_copy(update={"details": {}})

    def paths(self) -> list[Path]:
        """Return the part's folder."""
        return [self.parts.manifest_path(self.key).parent]


@stage_task
def write_partition(job: PartitionJob) -> None:
    """Write the dataset files of a partition, and read them back.

    Raises
    ------
    WorkspaceError
        If a shard's files are missing or not those that were selected from, or what was written is not what was
        selected.
    """
    job.parts.output.check()
    for shard in job.shards:
        check_inputs(job.workspace, shard)
    with job.parts.written(job.key) as folder, _database(job) as connection:
        paths = [_paths(job, shard) for shard in job.shards]
        documents = SelectedDocuments(connection, paths, job.settings, schema_of(job.columns))
        longest = _write(job, documents, folder / DATA)
        written, expected = (
            read_back(tree_files(folder / DATA), connection, longest),
            Written(documents.rows, documents.tokens),
        )
        if written != expected:
            raise WorkspaceError(
                f"the dataset's files hold {written.rows:,} documents of {written.tokens:,} tokens, "
                f"{expected.rows:,} of {expected.tokens:,} were selected: run again"
            )
        details = {
            **written._asdict(),
            "inputs": fingerprints(job.shards),
            "sources": _sources(job),
            "retention": documents.retention(),
        }
        write_manifest(folder / MANIFEST, job.key, tree_files(folder), details)


def _write(job: PartitionJob, documents: SelectedDocuments, data: Path) -> int:
    """Write the files of every folder; return the bytes of the longest line, in files of lines."""
    data.mkdir()
    prefix = "part-" if job.partitions == 1 else f"part-{job.number:05d}-"
    longest = 0
    read = track_by_size(
        "documents written", documents.read(), documents.rows, lambda pair: pair[1].num_rows, part=(0, 0.8)
    )
    for of_folder, tables in groupby(read, key=lambda pair: pair[0]):
        writer_of = WRITERS[job.settings.format]
        with (
            writer_of(data / of_folder.name, documents.schema, job.settings, prefix) as writer,
            background_writer() as write,
        ):
            for _, table in tables:
                write(partial(writer.write, table))
        longest = max(longest, writer.longest)
    return longest


def _paths(job: PartitionJob, shard: ShardFiles) -> ShardPaths:
    """Return a shard's files, and write its selected documents with their texts where these are in the source."""
    documents, scores, masks = (job.workspace.resolve(file) for file in (shard.documents, shard.scores, shard.masks))
    texts = documents
    if TextSource.of(shard.documents) is not None:
        texts = _spill(job) / f"{shard.name}.parquet"
        selected = read_table(masks, columns=["selected"])["selected"].to_numpy()
        write_with_texts(job.workspace, shard.documents, texts, np.flatnonzero(selected))
    return ShardPaths(str(documents), str(scores), str(masks), str(texts))


def _sources(job: PartitionJob) -> list[dict[str, Any]]:
    """Return what the provenance record says of the source's files of a partition's shards."""
    return [
        {
            **source.model_dump(include={"relative", "bytes", "fingerprint"}),
            "documents_in": shard.documents.details["rows_in"],
            "documents_kept": shard.documents.rows,
            "dropped": shard.documents.details["dropped"],
        }
        for shard, source in zip(job.shards, job.sources, strict=True)
    ]


def text_of(schema: pa.Schema) -> str:
    """Return a schema as `PartitionJob.columns` holds it."""
    return base64.b64encode(schema.serialize()).decode()


def schema_of(text: str) -> pa.Schema:
    """Return the schema that `text_of` returned as a text."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def fingerprints(shards: Sequence[ShardFiles]) -> list[list[str]]:
    """Return the name and the files' fingerprints of every shard."""
    return [
        [shard.name, shard.documents.fingerprint, shard.scores.fingerprint, shard.masks.fingerprint] for shard in shards
    ]


def check_inputs(workspace: Workspace, shard: ShardFiles) -> None:
    """Check that a shard's files are unchanged since the job was planned, and have equal numbers of rows.

    Raises
    ------
    DamagedFileError
        If one cannot be read.
    WorkspaceError
        If they are not.
    """
    for file in (shard.documents, shard.scores, shard.masks):
        path = workspace.resolve(file)
        found = read_fingerprint(path)
        if found is None:
            raise DamagedFileError(str(path), NO_FOOTER)
        if found != file.fingerprint:
            raise WorkspaceError(
                f"{file.path} was written by another run since this one read it: run again, one run at a time"
            )
        if file.rows != shard.documents.rows:
            raise WorkspaceError(
                f"{file.path} has {file.rows:,} rows for {shard.documents.rows:,} documents: "
                f"run again with --refresh {file.stage}"
            )


def _spill_folder(workspace: Workspace, settings: MaterializeSettings) -> Path:
    """Return the folder that the databases of all of a workspace's partitions spill into."""
    own = digest(workspace.address)
    return workspace.cache / "materialize-spill" if settings.spill is None else Path(settings.spill) / own


def remove_spilled(workspace: Workspace, settings: MaterializeSettings) -> None:
    """Remove what the databases of killed runs left."""
    shutil.rmtree(_spill_folder(workspace, settings), ignore_errors=True)


def _spill(job: PartitionJob) -> Path:
    return _spill_folder(job.workspace, job.settings) / job.key.fingerprint[:16]


def _database(job: PartitionJob) -> AbstractContextManager[duckdb.DuckDBPyConnection]:
    return spilling_database(
        _spill(job),
        job.settings.memory_limit,
        f"{job.kind} {job.name}",
        at_once=job.at_once,
        setting="materialize.spill",
        file="chosen.duckdb",
    )
