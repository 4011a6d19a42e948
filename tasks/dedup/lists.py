"""List rows shard by shard: files that are known by what is in them, and a summary that names them.

A shard without such rows has no file. When a shard is added, no other shard's file is written again.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pyarrow as pa

from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.tasks.storage.parquet import read_table
from fineweb_mask.tasks.storage.remote.copies import local_copies, size_of
from fineweb_mask.tasks.workspace.job import GroupJob, find_file
from fineweb_mask.tasks.workspace.listing import Listing
from fineweb_mask.tasks.workspace.references import StageFile, content_key
from fineweb_mask.tasks.workspace.shard_files import NEAR
from fineweb_mask.tasks.workspace.stage_parquet import read_fingerprint, stage_file_writer

WRITERS = 32
"""Files that are written at the same time: at a URL, most of the time is spent waiting."""

Rows = TypeVar("Rows")


class ListsJob(GroupJob):
    """List rows of every shard of a corpus."""

    name: ClassVar[str] = "corpus"
    summaries: ClassVar[str]  # folder of the summaries, beside what the buckets found
    listed_rows: ClassVar[str]  # what they are called in a message
    sorted_rows: list[StageFile]  # of each shard, in the order in which the shards came
    buckets: tuple[StageFile, ...] = ()  # what was found in each: needed to build the output, not to find it

    @abstractmethod
    def listed(self, row: dict[str, Any]) -> StageFile:
        """Return the reference to a shard's list, from its row of the summary; without a path if it has none."""

    @property
    def shard_names(self) -> list[str]:
        """The names of the shards."""
        return [file.name for file in self.sorted_rows]

    @property
    def summary(self) -> Path:
        """The file that says which duplicates each shard has."""
        return self.workspace.shard_path(self.summaries, self.name, self.key)

    def paths(self) -> list[Path]:
        """Return the summary, and the files of the shards that have duplicates, as far as the summary is there."""
        root = self.workspace.root
        return [self.summary, *(root / file.path for file in self._listed(None) or [] if file.path)]

    def compared(self) -> tuple[StageFile, ...]:
        """Return what was found in every bucket.

        Raises
        ------
        WorkspaceError
            If it is not given.
        """
        if not self.buckets:
            raise WorkspaceError(
                f"the {self.listed_rows} of a corpus are listed from what its buckets found, which is not there: "
                "run again"
            )
        return self.buckets

    def shard_files(self, listing: Listing | None = None) -> list[StageFile] | None:
        """Return the shards' duplicates, in the order of the shards, or None if one is not there."""
        files = self._listed(listing)
        if files is None:
            return None
        if listing is not None:
            sizes = listing.sizes
            is_there = all(sizes.get(file.path) == file.bytes for file in files if file.path)
        else:
            root = self.workspace.root
            is_there = all(size_of(root / file.path) == file.bytes for file in files if file.path)
        return files if is_there else None

    def _listed(self, listing: Listing | None) -> list[StageFile] | None:
        """Return the shards' duplicates as the summary has them; None without a summary."""
        found = find_file(self, self.summaries, self.name, listing)
        if found is None:
            return None
        with local_copies():
            return [self.listed(row) for row in read_table(self.workspace.resolve(found)).to_pylist()]


def write_lists(
    job: ListsJob, schema: pa.Schema, portions: Iterable[Iterable[Rows]], write: Callable[[Rows], StageFile]
) -> None:
    """Write the list of every shard by `write`, several at a time, and then the summary, whose columns are `schema`."""
    with stage_file_writer(job.summary, schema, job.key) as summary, ThreadPoolExecutor(WRITERS) as pool:
        for portion in portions:
            files = [
                {
                    "shard": file.name,
                    "rows": file.rows,
                    "bytes": file.bytes,
                    "content": file.fingerprint,
                    "near": file.details.get(NEAR),
                    "path": file.path,
                }
                for file in pool.map(write, portion)
            ]
            summary.write(pa.RecordBatch.from_pylist(files, schema=schema))


@local_copies()  # those of the job are not known to its threads
def write_list(path: Path, rows: pa.Table, content: str, *, force: bool) -> int:
    """Write a shard's list, unless one of this content is there; return its size in bytes."""
    if force or read_fingerprint(path) != content:
        with stage_file_writer(path, rows.schema, content_key(content)) as writer:
            for batch in rows.combine_chunks().to_batches():
                writer.write(batch)
            writer.details = {"content": content}
    return size_of(path) or 0
