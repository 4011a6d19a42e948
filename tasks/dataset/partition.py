"""Write a dataset partition by partition: survey the corpus, shuffle if asked to, write each partition's files.

A partition is some shards, one after the other in the order of their names, whose selected rows have dataset files of
their own: one file, or a few, in each folder of the layout. It is made in one pass over its shards, by a job that holds
only their references, with a DuckDB of its own; its output depends on no other partition, so partitions run in any
order, several at a time, and a run that was killed writes only those that it had not finished. `Parts` keeps them.

What concerns the whole corpus is small: the survey finds the columns of all shards, from the files' footers, and the
edges of the groups in the card's tables, from a sample. With the edges, every partition's share of what the card shows
is counted by a job of its own, so that the files need only the columns: where those of a partition's shards are those
of the corpus, its files may be written before the other shards are ready.

A shuffle of several partitions moves rows between them. Every partition writes its rows into as many streams as there
are partitions, by ranges of a random number; then each stream is sorted and written as a partition of the dataset.
The rows come in the same order however many streams there are. A single partition is sorted at once.

Before a partition is kept, its files are read back: their rows and tokens must be those that the masks select.
"""

import base64
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.models.runtime.progress import track_by_size
from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.models.schemas import with_text
from fineweb_mask.models.settings import MaterializeSettings
from fineweb_mask.tasks.dataset.output import MATERIALIZE
from fineweb_mask.tasks.dataset.parts import DATA, MANIFEST, Parts
from fineweb_mask.tasks.dataset.rows import (
    SelectedDocuments,
    ShardPaths,
    StreamDocuments,
    common_schema,
    stream_schema,
)
from fineweb_mask.tasks.dataset.writers import WRITERS, Written, read_back
from fineweb_mask.tasks.inference.prefetch import background_writer
from fineweb_mask.tasks.reporting.breakdown import Edges, count_numbers, number_edges
from fineweb_mask.tasks.source.discovery import SourceShard
from fineweb_mask.tasks.source.texts import TextSource, write_with_texts
from fineweb_mask.tasks.storage.atomic import atomic_folder, tree_files
from fineweb_mask.tasks.storage.database import hide_progress
from fineweb_mask.tasks.storage.parquet import DamagedFileError, read_table, seal
from fineweb_mask.tasks.workspace.job import Dependencies, Stage, StageJob, stage_task
from fineweb_mask.tasks.workspace.listing import Listing
from fineweb_mask.tasks.workspace.manifest import Manifest, manifest_reference, write_manifest
from fineweb_mask.tasks.workspace.references import StageFile, digest
from fineweb_mask.tasks.workspace.shard_files import ShardFiles
from fineweb_mask.tasks.workspace.stage_parquet import read_fingerprint, read_footer
from fineweb_mask.tasks.workspace.workspace import Workspace, disk_errno, disk_errors_explained, space_left

FOOTER_THREADS = 16
NO_FOOTER = "it is missing, or its footer cannot be read"
ROW_GROUP_ROWS = 8_192
"""Rows of a row group in a stream's file."""
ORDER_SETTINGS = {"layout", "shuffle", "seed"}
FILE_SETTINGS = {"format", "file_size", "row_group_size"}
MEMORY = re.compile(r"([\d.]+)\s*(\w+)")


class PartJob(StageJob):
    """A job that makes some part of what the dataset is put together from."""

    settings: MaterializeSettings
    version: str  # of the dataset that is made; no part depends on it

    @property
    def parts(self) -> Parts:
        """Where the parts are kept."""
        return Parts.of(self.workspace, self.settings, self.version)

    def current(self, listing: Listing | None = None) -> StageFile | None:  # noqa: ARG002 - manifests are small
        """Return a reference to the part if it is whole, else None; its details are only in its manifest."""
        key = self.key
        manifest = self.found()
        if manifest is None:
            return None
        reference = manifest_reference(self.workspace, self.parts.manifest_path(key), self.name, manifest)
        return reference.model_copy(update={"details": {}})

    def paths(self) -> list[Path]:
        """Return the part's folder."""
        return [self.parts.manifest_path(self.key).parent]

    def found(self) -> Manifest | None:
        """Return the part's manifest if the part is whole, else None."""
        return self.parts.found(self.key)


class SurveyJob(PartJob):
    """Find the columns of all shards, and the edges of the groups that documents are counted by."""

    stage: ClassVar[Stage] = Stage("survey", version=1, label=MATERIALIZE, run_with=(MATERIALIZE,))
    name: ClassVar[str] = "survey"
    documents: list[str]  # the files of all shards, in the order of their names
    inputs: str  # digest of all shards' fingerprints
    rows: int  # of all shards
    sampled: list[ShardFiles]  # shards that the edges are taken from

    def depends_on(self) -> Dependencies:
        """Return the digest of all shards."""
        return Dependencies(settings=None, inputs=self.inputs)

    def current(self, listing: Listing | None = None) -> StageFile | None:  # noqa: ARG002 - manifests are small
        """Return a reference to what was found, with it in the details, if it is there, else None."""
        key, manifest = self.key, self.found()
        if manifest is None:
            return None
        return manifest_reference(self.workspace, self.parts.manifest_path(key), self.name, manifest)


@stage_task
def survey(job: SurveyJob) -> None:
    """Record the columns of all shards, and the edges of the groups that documents are counted by.

    Raises
    ------
    WorkspaceError
        If a shard's file is missing, damaged, or not the one that was selected from.
    """
    for shard in job.sampled:
        check_inputs(job.workspace, shard)
    columns = read_columns(job.workspace, job.documents)
    edges = number_edges(job.workspace, job.sampled, job.rows)
    details = {
        "columns": columns,
        "edges": {name: found.model_dump() for name, found in edges.items()},
    }
    write_manifest(job.parts.manifest_path(job.key), job.key, [], details)


def read_columns(workspace: Workspace, documents: Sequence[str]) -> str:
    """Return the columns that shards' documents have together, from the footers of their files."""
    with ThreadPoolExecutor(FOOTER_THREADS) as threads:
        return _as_text(common_schema(list(threads.map(partial(_schema, workspace), documents))))


def _schema(workspace: Workspace, path: str) -> pa.Schema:
    raise_if_stopped()
    footer = read_footer(workspace.root / path)
    if footer is None:
        raise DamagedFileError(str(workspace.root / path), NO_FOOTER)
    return with_text(footer.schema.to_arrow_schema().remove_metadata())


def _as_text(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize()).decode()


def _as_schema(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def columns_of(survey: StageFile) -> str:
    """Return the columns of the documents of all shards, which a survey found: an Arrow schema, in base64."""
    return str(survey.details["columns"])


def edges_of(survey: StageFile) -> dict[str, Edges]:
    """Return the edges of the groups that documents are counted by, which a survey found."""
    return {name: Edges.model_validate(found) for name, found in survey.details["edges"].items()}


class ShardsJob(PartJob):
    """A job on some of the shards."""

    number: int  # of the partition
    partitions: int  # of the dataset
    first: int  # place of the first of the shards in the corpus
    shards: list[ShardFiles]
    sources: list[SourceShard]  # of the shards
    columns: str  # of the documents of all shards, as `columns_of` returns them
    corpus: str  # digest of the source's files: two corpora share no part, since a part is removed when it is used
    at_once: int = 1  # jobs that share the memory and the threads

    @property
    def name(self) -> str:
        """The number of the partition."""
        return f"{self.number:05d}"

    @property
    def inputs(self) -> list[list[str]]:
        """The names and the fingerprints of the shards' files."""
        return fingerprints(self.shards)


class CountJob(PartJob):
    """Count what the card shows of a partition's shards."""

    stage: ClassVar[Stage] = Stage("count", version=1, label=MATERIALIZE, run_with=(MATERIALIZE,))
    number: int  # of the partition
    shards: list[ShardFiles]
    survey: StageFile

    @property
    def name(self) -> str:
        """The number of the partition."""
        return f"{self.number:05d}"

    def depends_on(self) -> Dependencies:
        """Return the edges of the groups, and the files that are read."""
        return Dependencies(settings=None, inputs=[fingerprints(self.shards), self.survey.fingerprint])


@stage_task
def count(job: CountJob) -> None:
    """Count the documents of some shards by groups of numbers, and how many of them are selected.

    Raises
    ------
    WorkspaceError
        If a shard's file is missing, damaged, or not the one that was selected from.
    """
    for shard in job.shards:
        check_inputs(job.workspace, shard)
    numbers = count_numbers(job.workspace, job.shards, edges_of(job.survey))
    details = {"numbers": {name: counts.model_dump() for name, counts in numbers.items()}}
    write_manifest(job.parts.manifest_path(job.key), job.key, [], details)


class ShuffleJob(ShardsJob):
    """Write the rows of a partition's shards into streams, by ranges of a random number."""

    stage: ClassVar[Stage] = Stage("shuffle", version=3, label=MATERIALIZE, run_with=(MATERIALIZE,))

    def depends_on(self) -> Dependencies:
        """Return the settings of the order, and the files that are read."""
        settings = [self.settings.model_dump(include=ORDER_SETTINGS), self.first, self.partitions]
        return Dependencies(settings=settings, inputs=[self.inputs, self.columns, self.corpus])

    def stream(self, number: int) -> Path:
        """Return the file of this partition's rows in a stream."""
        return self.parts.manifest_path(self.key).parent / stream_name(number)


class PartitionJob(ShardsJob):
    """Write the dataset files of a partition: of its shards, or of a stream of all partitions' rows."""

    stage: ClassVar[Stage] = Stage("partition", version=3, label=MATERIALIZE, run_with=(MATERIALIZE,))
    shuffled: tuple[StageFile, ...] = ()  # the partitions' streams; if there are any, `shards` is empty

    def depends_on(self) -> Dependencies:
        """Return the settings that change the files' bytes or names, and the files that are read."""
        settings = self.settings.digested(include=ORDER_SETTINGS | FILE_SETTINGS)
        inputs = [file.fingerprint for file in self.shuffled] or self.inputs
        return Dependencies(
            settings=[settings, self.number, self.partitions, self.first if self.settings.shuffle else 0],
            inputs=[inputs, self.columns, self.corpus],
        )


@stage_task
def shuffle(job: ShuffleJob) -> None:
    """Write the selected documents of some shards into the streams of a shuffle.

    Raises
    ------
    WorkspaceError
        If a shard's files are missing or not those that were selected from, or a row is missing or repeated.
    """
    with atomic_folder(job.parts.manifest_path(job.key).parent) as folder, database(job) as connection:
        documents = _selected(job, connection)
        streams = _write_streams(documents, folder, job.partitions)
        expected = Written(documents.rows, documents.tokens)
        _check_written(Written(*map(sum, zip(*streams, strict=True))), expected)
        details = {
            "inputs": job.inputs,
            "sources": _sources(job),
            "retention": documents.retention(),
            "rows": expected.rows,
            "tokens": expected.tokens,
            "streams": streams,
            "schema": _as_text(documents.schema),
        }
        write_manifest(folder / MANIFEST, job.key, tree_files(folder), details)


def stream_name(number: int) -> str:
    """Return the name of a stream's file."""
    return f"stream-{number:05d}.parquet"


def _write_streams(documents: SelectedDocuments, folder: Path, streams: int) -> list[tuple[int, int]]:
    """Write a file for every stream; return the rows and the tokens of each."""
    schema = stream_schema(documents.schema)
    token_count = f"c{documents.schema.get_field_index('token_count')}"
    found = track_by_size("documents shuffled", documents.read_random(), documents.rows, lambda pair: len(pair[0]))
    written = [[0, 0] for _ in range(streams)]
    number = 0
    writer = _stream_writer(folder / stream_name(number), schema)
    try:
        for random, table in found:
            raise_if_stopped()
            numbers = (random >> np.uint64(32)) * np.uint64(streams) >> np.uint64(32)  # ranges of equal size
            for stream in np.unique(numbers).tolist():
                while number < stream:  # streams without a row get a file, too
                    writer.close()
                    number += 1
                    writer = _stream_writer(folder / stream_name(number), schema)
                part = table.filter(pa.array(numbers == stream)).cast(schema)
                writer.write_table(part, row_group_size=ROW_GROUP_ROWS)
                written[stream][0] += part.num_rows
                written[stream][1] += pc.sum(part[token_count]).as_py() or 0
    finally:
        writer.close()
    for rest in range(number + 1, streams):
        _stream_writer(folder / stream_name(rest), schema).close()
    for stream in range(streams):
        seal(folder / stream_name(stream))
    return [(rows, tokens) for rows, tokens in written]


def _stream_writer(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    return pq.ParquetWriter(path, schema, compression="zstd", write_page_checksum=True, use_dictionary=False)


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
    with job.parts.written(job.key) as folder, database(job) as connection:
        if job.shuffled:
            stream, expected = _stream(job, connection)
            details = _write_and_check(job, stream, lambda: expected, folder, connection)
        else:
            selected = _selected(job, connection)
            details = _write_and_check(
                job, selected, lambda: Written(selected.rows, selected.tokens), folder, connection
            )
            details |= {"inputs": job.inputs, "sources": _sources(job), "retention": selected.retention()}
        write_manifest(folder / MANIFEST, job.key, tree_files(folder), details)


def _selected(job: ShardsJob, connection: duckdb.DuckDBPyConnection) -> SelectedDocuments:
    for shard in job.shards:
        check_inputs(job.workspace, shard)
    paths = [_paths(job, shard) for shard in job.shards]
    return SelectedDocuments(connection, paths, job.settings, _as_schema(job.columns), job.first)


def _paths(job: ShardsJob, shard: ShardFiles) -> ShardPaths:
    """Return a shard's files, and write its selected documents with their texts where these are in the source."""
    documents, scores, masks = (job.workspace.resolve(file) for file in (shard.documents, shard.scores, shard.masks))
    texts = documents
    if TextSource.of(shard.documents) is not None:
        texts = _spill(job) / f"{shard.name}.parquet"
        selected = read_table(masks, columns=["selected"])["selected"].to_numpy()
        write_with_texts(job.workspace, shard.documents, texts, np.flatnonzero(selected))
    return ShardPaths(str(documents), str(scores), str(masks), str(texts))


def _stream(job: PartitionJob, connection: duckdb.DuckDBPyConnection) -> tuple[StreamDocuments, Written]:
    """Return the documents of the job's stream, and how many rows and tokens were written into it."""
    manifests = job.parts.read(job.shuffled)
    files = [str(job.workspace.local(str(Path(file.path).parent / stream_name(job.number)))) for file in job.shuffled]
    streams = [manifest.details["streams"][job.number] for manifest in manifests]
    documents = StreamDocuments(connection, files, _as_schema(manifests[0].details["schema"]), job.settings)
    return documents, Written(*map(sum, zip(*streams, strict=True)))


def _sources(job: ShardsJob) -> list[dict[str, Any]]:
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


def _write_and_check(
    job: PartitionJob,
    documents: SelectedDocuments | StreamDocuments,
    expected: Callable[[], Written],
    folder: Path,
    connection: duckdb.DuckDBPyConnection,
) -> dict[str, Any]:
    """Write the files of every folder, and return their rows and tokens after checking them."""
    (folder / DATA).mkdir()
    prefix = "part-" if job.partitions == 1 else f"part-{job.number:05d}-"
    longest = 0
    read = track_by_size(
        "documents written", documents.read(), documents.rows, lambda pair: pair[1].num_rows, part=(0, 0.8)
    )
    for of_folder, tables in groupby(read, key=lambda pair: pair[0]):
        with (
            WRITERS[job.settings.format](
                folder / DATA / of_folder.name, documents.schema, job.settings, prefix
            ) as writer,
            background_writer() as write,
        ):
            for _, table in tables:
                write(partial(writer.write, table))
        longest = max(longest, writer.longest)
    written = read_back(tree_files(folder / DATA), connection, longest)
    _check_written(written, expected())
    return {"rows": written.rows, "tokens": written.tokens}


def _check_written(written: Written, expected: Written) -> None:
    if written != expected:
        raise WorkspaceError(
            f"the dataset's files hold {written.rows:,} documents of {written.tokens:,} tokens, "
            f"{expected.rows:,} of {expected.tokens:,} were selected: run again"
        )


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


def spill_folder(workspace: Workspace, settings: MaterializeSettings) -> Path:
    """Return the folder that the databases of all of a workspace's partitions spill into."""
    own = digest(str(workspace.root))
    return workspace.cache / "materialize-spill" if settings.spill is None else Path(settings.spill) / own


def remove_spilled(workspace: Workspace, settings: MaterializeSettings) -> None:
    """Remove what the databases of killed runs left."""
    shutil.rmtree(spill_folder(workspace, settings), ignore_errors=True)


def _spill(job: ShardsJob) -> Path:
    return spill_folder(job.workspace, job.settings) / job.key.fingerprint[:16]


@contextmanager
def database(job: ShardsJob) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a database with the job's share of the memory, which spills into a folder of this workspace."""
    settings = job.settings
    spill = _spill(job)
    shutil.rmtree(spill, ignore_errors=True)  # of a run that was killed
    with disk_errors_explained(spill):
        spill.mkdir(parents=True)
    config: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": share_of(settings.memory_limit, job.at_once),
        "temp_directory": str(spill),
    }
    if job.at_once > 1:
        config["threads"] = max(1, (os.cpu_count() or 1) // job.at_once)
    try:
        with duckdb.connect(str(spill / "chosen.duckdb"), config=config) as connection:
            hide_progress(connection)
            yield connection
    except duckdb.OutOfMemoryException as error:
        raise _explained(error, spill, settings) from error
    except duckdb.Error as error:  # also a transaction that fails to commit
        number = disk_errno(error)
        if number is None:
            raise
        free = space_left(number, spill.parent)
        raise WorkspaceError(
            f"{job.stage.name} {job.name}: {spill.parent}: {os.strerror(number)}{free}: free some space there, or set "
            "materialize.spill to another folder; the dataset that was there before is unchanged"
        ) from error
    finally:
        shutil.rmtree(spill, ignore_errors=True)


def _explained(error: duckdb.OutOfMemoryException, spill: Path, settings: MaterializeSettings) -> WorkspaceError:
    """Return the error that says what was too small: the disk, what the system allows, or the setting."""
    if "max_temp_directory_size" in str(error):
        problem = (
            f"{spill.parent}: no space is left to spill to: free some there, or set materialize.spill to a folder on a "
            "larger disk"
        )
    elif "used)" not in str(error):  # DuckDB tells how much of its own limit is used, if that is reached
        problem = (
            f"the system refuses memory that materialize.memory_limit, {settings.memory_limit}, would allow: raise the "
            "limit of the process (ulimit -v), end other processes, or set materialize.memory_limit to less"
        )
    else:
        problem = (
            f"materialize.memory_limit: {settings.memory_limit} is too little for DuckDB: raise it, or lower "
            "engine.workers"
        )
    return WorkspaceError(f"{problem}; the dataset that was there before is unchanged")


def share_of(memory_limit: str, jobs: int) -> str:
    """Return a job's share of the memory.

    >>> share_of("2GB", 4)
    '0.5GB'
    """
    found = MEMORY.fullmatch(memory_limit)
    if found is None or jobs == 1:
        return memory_limit
    return f"{float(found[1]) / jobs:g}{found[2]}"
