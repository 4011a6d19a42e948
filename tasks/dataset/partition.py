"""Divide a corpus into partitions, and write the dataset's files of each.

A partition is some shards, one after the other in the order of their names, whose selected rows become separate dataset
files: one, or a few, in each folder of the layout. It is made in one pass over its shards, by a job that holds only
their references; its output depends on no other partition, so partitions run in any order, several at a time, and a run
that was killed writes only those that it had not finished. `Unfinished` says where they wait for the others.

Before a partition is kept, the rows that its files have by their footers must be as many as the masks select.

Where partitions begin depends on the source and the settings alone, never on how many jobs run at once. A partition is
as many shards as have source files of `materialize.partition_size` bytes: a small corpus is one partition, whose files
are what one job would write.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import dataset

from fineweb_mask.models.columns import is_nested
from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.models.runtime.progress import track_by_size
from fineweb_mask.models.schemas import MASKS, MEASURED, ROW, SOURCE_ROW
from fineweb_mask.models.settings import FLAT, MaterializeSettings
from fineweb_mask.tasks.catalog.quoting import identifier
from fineweb_mask.tasks.catalog.spilling import open_database
from fineweb_mask.tasks.dataset.folders import MAX_FOLDERS, UNKNOWN, check_folders, folder_name
from fineweb_mask.tasks.dataset.output import MATERIALIZE, Output, Unfinished
from fineweb_mask.tasks.source.discovery import SourceShard
from fineweb_mask.tasks.storage.parquet import DamagedFileError, VerifiedFile, read_metadata, read_schema, read_table
from fineweb_mask.tasks.storage.remote.copies import size_of
from fineweb_mask.tasks.workspace.job import Dependencies, Stage, StageJob, stage_task
from fineweb_mask.tasks.workspace.listing import Listing
from fineweb_mask.tasks.workspace.manifest import manifest_reference
from fineweb_mask.tasks.workspace.references import ShardFiles, StageFile, digest
from fineweb_mask.tasks.workspace.workspace import Workspace

NO_FOOTER = "it is missing, or its footer cannot be read"
IN_FILES = {"layout", "file_size", "partition_size"}
"""Settings on which the bytes or names of the files depend."""
NOT_IN_FILES = {"output", "export"}
"""Settings of which no byte of the dataset depends."""
BATCH_ROWS = 8_192
ROW_GROUP_ROWS = 20_000
ROW_GROUP_BYTES = 64 * 2**20
"""Bytes of a shard's file that as many documents have as a row group, at most."""
OPEN_FILES = 256
TEXTS = ("text", "id", "url")  # mostly unique values: no dictionary encoding
FOLDER = "fineweb_mask_folder"
"""The column of the folders' names, which is in no file."""

CHOSEN = """
    SELECT masks.row, {scores}, masks.inclusion, masks.block FROM masks LEFT JOIN scores USING (row)
    WHERE masks.selected ORDER BY masks.row
    """
COUNTED = """
    SELECT dump, language, count(*) AS documents, count(*) FILTER (selected) AS selected,
           coalesce(sum(token_count) FILTER (selected), 0)::BIGINT AS tokens
    FROM documents LEFT JOIN masks USING (row) GROUP BY dump, language ORDER BY ALL
    """


class PartitionJob(StageJob):
    """Write the dataset files of a partition."""

    stage: ClassVar[Stage] = Stage("partition", version=6, label=MATERIALIZE, interim=True)
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
        return Unfinished(self.workspace, Output.of(self.workspace, self.settings), self.version)

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
        If a selected document has no score, no column exists for the layout, or what was written is not what was
        selected.
    """
    Output.of(job.workspace, job.settings).check()
    for shard in job.shards:
        for path in map(job.workspace.resolve, (shard.documents, shard.scores, shard.masks)):
            if size_of(path) is None:
                raise DamagedFileError(str(path), NO_FOOTER)
    counted: list[dict[str, Any]] = []
    with job.unfinished.written() as folder, open_database() as connection:
        files = _write_files(
            job, folder, _selected(connection, job.workspace, job.shards, job.settings.layout, counted)
        )
        rows, selected = (sum(read_metadata(file).num_rows for file in files), sum(row["selected"] for row in counted))
        if rows != selected:
            raise WorkspaceError(f"the dataset's files hold {rows:,} documents, {selected:,} were selected: run again")
        tokens = sum(row.pop("tokens") for row in counted)
        details = {"rows": rows, "tokens": tokens, "sources": _sources(job), "retention": counted}
        job.unfinished.keep(job.name, job.key, folder, files, details)


def _write_files(job: PartitionJob, folder: Path, batches: Iterator[pa.RecordBatch]) -> list[Path]:
    """Write documents, each to the folder of the layout's value, and return the files, whose names have an order.

    How many rows a file and a row group have follows from the sizes of the shards' files. DuckDB does not write them:
    it marks a column without nulls as required, so the schemas of the files would differ.
    """
    documents = [shard.documents for shard in job.shards]
    size = max(1, sum(file.bytes for file in documents) // max(1, sum(file.rows for file in documents)))  # of one
    group = min(ROW_GROUP_ROWS, max(1, min(ROW_GROUP_BYTES, job.settings.file_size) // size))
    form, data = dataset.ParquetFileFormat(), folder / job.unfinished.data
    if (first := next(batches, None)) is None:
        return []
    names = first.schema.names
    dataset.write_dataset(
        pa.RecordBatchReader.from_batches(first.schema, chain([first], batches)),
        data,
        format=form,
        file_options=form.make_write_options(
            compression="zstd", write_page_checksum=True, use_dictionary=[name for name in names if name not in TEXTS]
        ),
        basename_template=job.prefix + "{i}.parquet",
        partitioning=None
        if job.settings.layout == FLAT
        else dataset.DirectoryPartitioning(pa.schema([(FOLDER, pa.string())]), segment_encoding="none"),
        preserve_order=True,
        max_open_files=OPEN_FILES,
        max_partitions=MAX_FOLDERS,
        max_rows_per_file=max(group, job.settings.file_size // size),
        min_rows_per_group=group,
        max_rows_per_group=group,
    )
    found = [
        path.rename(path.with_name(f"{job.prefix}{int(path.stem.removeprefix(job.prefix)):05d}.parquet"))
        for path in list(data.rglob("*.parquet"))
    ]
    return sorted(found)


def _selected(
    connection: duckdb.DuckDBPyConnection,
    workspace: Workspace,
    shards: Sequence[ShardFiles],
    layout: str,
    counted: list[dict[str, Any]],
) -> Iterator[pa.RecordBatch]:
    """Yield the selected documents shard by shard, in their order: their columns, the scores and those of the masks.

    A document's `row` is its place in the shard's file, by which its score and its mask are found. With a layout, the
    name of the folder is a column, too. How many documents of each dump and language there are is added to `counted`.
    """
    columns = read_schema(workspace.resolve(shards[0].documents))
    hidden = {ROW.name, SOURCE_ROW.name, *MEASURED.names}
    own = [field.name for field in columns if field.name not in hidden]
    known = [
        name for name in columns.names if name in {*own, *MEASURED.names} and not is_nested(columns.field(name).type)
    ]
    if layout not in {FLAT, *known}:
        raise WorkspaceError(
            f"materialize.layout: no column {layout!r}, it may be {FLAT!r} or one of "
            f"{', '.join(name for name in known if name in own)}"
        )
    scores = read_schema(workspace.resolve(shards[0].scores)).remove(0)
    schema = pa.schema([*map(columns.field, own), *scores, MASKS.field("inclusion"), MASKS.field("block")])
    chosen_columns = CHOSEN.format(scores=", ".join(f"scores.{identifier(name)}" for name in scores.names))
    read = list(dict.fromkeys([*own, *([] if layout == FLAT else [layout])]))
    folders: dict[str | None, str] = {}

    def batches() -> Iterator[tuple[int, pa.RecordBatch, pa.Table]]:
        for shard in shards:
            documents = workspace.resolve(shard.documents)
            for name, file in (("masks", shard.masks), ("scores", shard.scores)):
                connection.register(name, read_table(workspace.resolve(file)))
            connection.register("documents", read_table(documents, columns=["row", "dump", "language", "token_count"]))
            counted.extend(connection.sql(COUNTED).to_arrow_table().to_pylist())
            chosen = connection.sql(chosen_columns).to_arrow_table()
            if missing := chosen[scores.names[-1]].null_count:
                raise WorkspaceError(
                    f"{workspace.resolve(shard.scores)}: {missing:,} selected documents have no score: "
                    "delete `scores` in the workspace and run again"
                )
            wanted, first = chosen["row"].to_numpy().astype(np.int64), 0
            with VerifiedFile(documents) as stream:
                for batch in stream.iter_batches(BATCH_ROWS, columns=read):
                    start, end = np.searchsorted(wanted, [first, first + batch.num_rows])
                    taken = batch.take(pa.array(wanted[start:end] - first))
                    yield batch.num_rows, taken, chosen.slice(start, end - start)
                    first += batch.num_rows

    total = sum(shard.rows for shard in shards)
    for _, batch, chosen in track_by_size("documents read", batches(), total, itemgetter(0), part=(0, 0.9)):
        table = pa.table([*batch.select(own).columns, *chosen.columns[1:]], schema=schema)
        if layout != FLAT:
            values = batch[layout].cast(pa.string()).dictionary_encode()
            new = [value for value in values.dictionary.to_pylist() if value not in folders]
            folders |= {value: folder_name(value or UNKNOWN) for value in new}
            check_folders(len(folders), layout)
            names = pa.array([folders[value] for value in values.dictionary.to_pylist()], pa.string())
            table = table.append_column(FOLDER, pc.fill_null(names.take(values.indices), UNKNOWN))
        yield from table.combine_chunks().to_batches()


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
    ends, full = [0], 0
    for index, until in enumerate(accumulate(sizes), 1):
        if until - full >= target or index == len(sizes):
            ends.append(index)
            full = until
    return [range(start, end) for start, end in pairwise(ends)]
