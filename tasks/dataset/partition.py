"""Divide a corpus into partitions, and write the dataset's files of each.

A partition is some shards, one after the other in the order of their names, whose selected rows become separate dataset
files: one, or a few, in each folder of the layout. It is made in one pass over its shards, by a job that holds only
their references; its output depends on no other partition, so partitions run in any order, several at a time, and a run
that was killed writes only those that it had not finished. `Unfinished` says where they wait for the others.

Before a partition is kept, the rows that its files have by their footers must be as many as the masks select.

Where partitions begin depends on the source and the settings alone, never on how many jobs run at once. A partition is
as many shards as have source files of `materialize.partition_size` bytes: a small corpus is one partition, whose files
are what one job would write. With more than 512 of them the size is doubled until there are not, so that the number of
jobs stays small.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, ClassVar

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.models.settings import MaterializeSettings
from fineweb_mask.tasks.catalog.spilling import open_database
from fineweb_mask.tasks.dataset.output import MATERIALIZE, Output, Unfinished
from fineweb_mask.tasks.dataset.rows import SelectedDocuments
from fineweb_mask.tasks.dataset.writers import DatasetWriter
from fineweb_mask.tasks.inference.prefetch import background_writer
from fineweb_mask.tasks.source.discovery import SourceShard
from fineweb_mask.tasks.storage.atomic import tree_files
from fineweb_mask.tasks.storage.parquet import DamagedFileError, read_metadata
from fineweb_mask.tasks.storage.remote.copies import size_of
from fineweb_mask.tasks.workspace.job import Dependencies, Stage, StageJob, stage_task
from fineweb_mask.tasks.workspace.listing import Listing
from fineweb_mask.tasks.workspace.manifest import manifest_reference
from fineweb_mask.tasks.workspace.references import ShardFiles, StageFile, digest

NO_FOOTER = "it is missing, or its footer cannot be read"
IN_FILES = {"layout", "file_size", "partition_size"}
"""Settings on which the bytes or names of the files depend."""
MOST_PARTITIONS = 512
NOT_IN_FILES = {"output", "export"}
"""Settings of which no byte of the dataset depends."""


class PartitionJob(StageJob):
    """Write the dataset files of a partition."""

    stage: ClassVar[Stage] = Stage("partition", version=5, label=MATERIALIZE)
    settings: MaterializeSettings
    version: str  # of the dataset's files, which names the settings and the files that they depend on
    number: int
    partitions: int  # of the dataset
    shards: list[ShardFiles]
    sources: list[SourceShard]  # of the shards

    @property
    def name(self) -> str:
        """The number of the partition."""
        return f"{self.number:05d}"

    @property
    def prefix(self) -> str:
        """What the names of its files begin with."""
        return "part-" if self.partitions == 1 else f"part-{self.number:05d}-"

    @property
    def unfinished(self) -> Unfinished:
        """Where the files wait until all partitions are written."""
        return Unfinished.of(self.workspace, self.settings, self.version)

    def depends_on(self) -> Dependencies:
        """Return which partition it is, and the version."""
        return Dependencies(settings=[self.number, self.partitions], inputs=self.version)

    def current(self, listing: Listing | None = None) -> StageFile | None:  # noqa: ARG002 - records are small
        """Return a reference to the partition's record if its files are there, else None; the record has details."""
        record = self.unfinished.record(self.name)
        if record is None or record.key != self.key:
            return None
        reference = manifest_reference(self.workspace, self.unfinished.record_path(self.name), self.name, record)
        return reference.model_copy(update={"details": {}})

    def paths(self) -> list[Path]:
        """Return the folder of all partitions of this version of the dataset."""
        return [self.unfinished.folder]


@stage_task
def write_partition(job: PartitionJob) -> None:
    """Write the dataset files of a partition.

    Raises
    ------
    DamagedFileError
        If a shard's file is missing or damaged.
    WorkspaceError
        If what was written is not what was selected.
    """
    Output.of(job.workspace, job.settings).check()
    for shard in job.shards:
        for path in map(job.workspace.resolve, (shard.documents, shard.scores, shard.masks)):
            if size_of(path) is None:
                raise DamagedFileError(str(path), NO_FOOTER)
    tokens = 0
    with (
        job.unfinished.written(job.name) as folder,
        open_database() as connection,
    ):
        documents = SelectedDocuments(connection, job.workspace, job.shards, job.settings.layout)
        with (
            DatasetWriter(folder, documents.schema, job.settings, job.prefix) as writer,
            background_writer() as write,
        ):
            for table, values in documents.read():
                write(partial(writer.write, table, values))
                tokens += pc.sum(table["token_count"]).as_py() or 0
        rows = sum(read_metadata(file).num_rows for file in tree_files(folder))
        if rows != documents.rows:
            raise WorkspaceError(
                f"the dataset's files hold {rows:,} documents, {documents.rows:,} were selected: run again"
            )
        details = {"rows": rows, "tokens": tokens, "sources": _sources(job), "retention": documents.retention()}
        job.unfinished.keep(job.name, job.key, folder, details)


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


def fingerprints(shards: Iterable[ShardFiles]) -> list[list[str]]:
    """Return the name and the files' fingerprints of every shard."""
    return [
        [shard.name, shard.documents.fingerprint, shard.scores.fingerprint, shard.masks.fingerprint] for shard in shards
    ]


def version_of(shards: Iterable[ShardFiles], settings: MaterializeSettings) -> str:
    """Return the version of the dataset's files, which depends on all that their names and bytes depend on."""
    packages = [pa.__version__, duckdb.__version__]  # other ones may write other bytes
    written = settings.model_dump(include=IN_FILES)
    return digest([fingerprints(shards), written, PartitionJob.stage.version, packages])


def partition_jobs(
    root: str, shards: Sequence[ShardFiles], sources: Mapping[str, SourceShard], settings: MaterializeSettings
) -> list[PartitionJob]:
    """Return the jobs of all partitions that have shards.

    Parameters
    ----------
    root
        The workspace's folder, or its URL.
    shards
        What is selected from, in the order of the names.
    sources
        The source's files of all shards, by name, those that are not selected from among them.
    settings
        How the dataset is written.
    """
    names = sorted(sources)
    places = divide([sources[name].bytes for name in names], settings.partition_size)
    by_name = {shard.name: shard for shard in shards}
    divided = [[by_name[name] for name in names[place.start : place.stop] if name in by_name] for place in places]
    version = version_of(shards, settings)
    return [
        PartitionJob(
            root=root,
            settings=settings,
            version=version,
            number=number,
            partitions=len(divided),
            shards=own,
            sources=[sources[shard.name] for shard in own],
        )
        for number, own in enumerate(divided)
        if own
    ]


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
