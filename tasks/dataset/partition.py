"""Divide a corpus into partitions, and write the dataset's files of each.

A partition is some shards, one after the other in the order of their names, whose selected rows become separate dataset
files: one, or a few, in each folder of the layout. It is made in one pass over its shards, by a job that holds only
their references, with a separate DuckDB; its output depends on no other partition, so partitions run in any order,
several at a time, and a run that was killed writes only those that it had not finished. `Parts` keeps them.

Before a partition is kept, its files are read back: their rows and tokens must be those that the masks select.

Where partitions begin depends on the source and the settings alone, never on how many jobs run at once. A partition is
as many shards as have source files of `materialize.partition_size` bytes: a small corpus is one partition, whose files
are what one job would write. With more than 512 of them the size is doubled until there are not, so that the number of
jobs stays small.
"""

import base64
import shutil
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import accumulate, groupby, pairwise
from pathlib import Path
from typing import Any, ClassVar

import duckdb
import pyarrow as pa

from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.models.runtime.progress import track_by_size
from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.models.settings import MaterializeSettings
from fineweb_mask.tasks.catalog.spilling import spilling_database
from fineweb_mask.tasks.dataset.output import MATERIALIZE
from fineweb_mask.tasks.dataset.parts import DATA, MANIFEST, Parts
from fineweb_mask.tasks.dataset.rows import SelectedDocuments, ShardPaths, common_schema
from fineweb_mask.tasks.dataset.writers import PartWriter, Written, read_back
from fineweb_mask.tasks.inference.prefetch import background_writer
from fineweb_mask.tasks.source.discovery import SourceShard
from fineweb_mask.tasks.storage.atomic import tree_files
from fineweb_mask.tasks.storage.parquet import DamagedFileError
from fineweb_mask.tasks.workspace.job import Dependencies, Stage, StageJob, stage_task
from fineweb_mask.tasks.workspace.listing import Listing
from fineweb_mask.tasks.workspace.manifest import manifest_reference, write_manifest
from fineweb_mask.tasks.workspace.references import ShardFiles, StageFile, digest
from fineweb_mask.tasks.workspace.stage_parquet import read_fingerprint, read_footer
from fineweb_mask.tasks.workspace.workspace import Workspace

NO_FOOTER = "it is missing, or its footer cannot be read"
IN_FILES = {"layout", "file_size"}
"""Settings on which the bytes or names of the files depend."""
MOST_PARTITIONS = 512
FOOTER_THREADS = 16
NOT_IN_FILES = {"output", "memory_limit", "spill", "export"}
"""Settings of which no byte of the dataset depends."""
ON_THE_CARD = {"title", "license", "source_datasets"}
"""Settings of which only the card and the record depend."""


class PartitionJob(StageJob):
    """Write the dataset files of a partition."""

    stage: ClassVar[Stage] = Stage("partition", version=3, label=MATERIALIZE)
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
    def prefix(self) -> str:
        """What the names of its files begin with."""
        return "part-" if self.partitions == 1 else f"part-{self.number:05d}-"

    @property
    def parts(self) -> Parts:
        """Where the files are kept until all partitions are written."""
        return Parts.of(self.workspace, self.settings, self.version)

    @property
    def spill(self) -> Path:
        """The folder that its database spills into."""
        return _spill_folder(self.workspace, self.settings) / self.key.fingerprint[:16]

    def depends_on(self) -> Dependencies:
        """Return the settings that change the files' bytes or names, and the files that are read."""
        settings = self.settings.model_dump(include=IN_FILES)
        return Dependencies(
            settings=[settings, self.number, self.partitions],
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
    spilled = spilling_database(
        job.spill,
        job.settings.memory_limit,
        f"{job.kind} {job.name}",
        at_once=job.at_once,
        setting="materialize.spill",
        file="chosen.duckdb",
    )
    with job.parts.written(job.key) as folder, spilled as connection:
        paths = [_paths(job, shard) for shard in job.shards]
        columns = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(job.columns)))
        documents = SelectedDocuments(connection, paths, job.settings, columns)
        _write(job, documents, folder / DATA)
        written = read_back(tree_files(folder / DATA))
        expected = Written(documents.rows, documents.tokens)
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


def _write(job: PartitionJob, documents: SelectedDocuments, data: Path) -> None:
    """Write the files of every folder."""
    data.mkdir()
    read = track_by_size(
        "documents written", documents.read(), documents.rows, lambda pair: pair[1].num_rows, part=(0, 0.8)
    )
    for of_folder, tables in groupby(read, key=lambda pair: pair[0]):
        with (
            PartWriter(data / of_folder.name, documents.schema, job.settings, job.prefix) as writer,
            background_writer() as write,
        ):
            for _, table in tables:
                write(partial(writer.write, table))


def _paths(job: PartitionJob, shard: ShardFiles) -> ShardPaths:
    """Return a shard's files."""
    return ShardPaths(*(str(job.workspace.resolve(file)) for file in (shard.documents, shard.scores, shard.masks)))


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


class Partitioning:
    """The partitions of a corpus.

    Parameters
    ----------
    root
        The workspace's folder, or its URL.
    shards
        What is selected from.
    sources
        The source's files of all shards, by name, those that are not selected from among them.
    settings
        How the dataset is written.
    at_once
        Jobs that run at the same time.
    """

    def __init__(
        self,
        root: str,
        shards: Iterable[ShardFiles],
        sources: Mapping[str, SourceShard],
        settings: MaterializeSettings,
        at_once: int = 1,
    ) -> None:
        self.shards = sorted(shards, key=lambda shard: shard.name)
        """What is selected from, in the order of the names."""
        self.inputs = digest(fingerprints(self.shards))
        """Digest of all shards' fingerprints."""
        written = settings.model_dump(exclude=NOT_IN_FILES | ON_THE_CARD)
        packages = [pa.__version__, duckdb.__version__]  # other ones may write other bytes
        self.version = digest([self.inputs, written, PartitionJob.stage.version, packages])[:8]
        """The version of the dataset's files: eight hex digits."""
        self._root = root
        self._sources = sources
        self._settings = settings
        self._at_once = at_once

    def jobs(self) -> list[PartitionJob]:
        """Return the jobs of all partitions that have shards; the footers of all shards' documents are read.

        Raises
        ------
        DamagedFileError
            If one cannot be read.
        """
        names = sorted(self._sources)
        places = divide([self._sources[name].bytes for name in names], self._settings.partition_size)
        by_name = {shard.name: shard for shard in self.shards}
        divided = [[by_name[name] for name in names[place.start : place.stop] if name in by_name] for place in places]
        corpus = digest([[name, self._sources[name].fingerprint] for name in names])
        columns = read_columns(Workspace(self._root), [shard.documents.path for shard in self.shards])
        return [
            PartitionJob(
                root=self._root,
                settings=self._settings,
                version=self.version,
                number=number,
                partitions=len(divided),
                shards=shards,
                sources=[self._sources[shard.name] for shard in shards],
                columns=columns,
                corpus=corpus,
                at_once=min(self._at_once, len(divided)),
            )
            for number, shards in enumerate(divided)
            if shards
        ]

    def remove_left(self) -> None:
        """Remove the parts that a run left which was killed after it had put the dataset in place."""
        workspace = Workspace(self._root)
        parts = Parts.of(workspace, self._settings, self.version)
        if workspace.exists(parts.folder):
            with workspace.alone():
                parts.remove(job.key for job in self.jobs())


def read_columns(workspace: Workspace, documents: Sequence[str]) -> str:
    """Return the columns that shards' documents have together, from the footers of their files."""
    with ThreadPoolExecutor(FOOTER_THREADS) as threads:
        columns = common_schema(list(threads.map(partial(_schema, workspace), documents)))
    return base64.b64encode(columns.serialize()).decode()


def _schema(workspace: Workspace, path: str) -> pa.Schema:
    raise_if_stopped()
    footer = read_footer(workspace.root / path)
    if footer is None:
        raise DamagedFileError(str(workspace.root / path), NO_FOOTER)
    return footer.schema.to_arrow_schema().remove_metadata()


def divide(sizes: Sequence[int], target: int) -> list[range]:
    """Divide shards into partitions, in their order.

    Parameters
    ----------
    sizes
        Bytes of every shard.
    target
        Bytes from which a partition is full.

    Examples
    --------
    >>> divide([3, 3, 3, 3, 3], target=6)
    [range(0, 2), range(2, 4), range(4, 5)]
    """
    while sum(sizes) > target * MOST_PARTITIONS:
        target *= 2
    ends, full = [0], 0
    for index, until in enumerate(accumulate(sizes), 1):
        if until - full >= target or index == len(sizes):
            ends.append(index)
            full = until
    return [range(start, end) for start, end in pairwise(ends)]
