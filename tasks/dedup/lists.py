"""List rows shard by shard: files that are known by what is in them, and a summary that names them.

A shard without such rows has no file. When a shard is added, no other shard's file is written again.
"""

from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar

from fineweb_mask.tasks.storage.mirror import size_of
from fineweb_mask.tasks.storage.parquet import read_table
from fineweb_mask.tasks.workspace.job import GroupJob, find_file
from fineweb_mask.tasks.workspace.listing import Listing
from fineweb_mask.tasks.workspace.references import StageFile


class ListsJob(GroupJob):
    """List rows of every shard of a corpus."""

    summaries: ClassVar[str]  # folder of the summaries, beside what the buckets found

    @abstractmethod
    def listed(self, row: dict[str, Any]) -> StageFile:
        """Return the reference to a shard's list, from its row of the summary; without a path if it has none."""

    @property
    def summary(self) -> Path:
        """The file that says which duplicates each shard has."""
        return self.workspace.shard_path(self.summaries, self.name, self.key)

    def paths(self) -> list[Path]:
        """Return the summary, and the files of the shards that have duplicates, as far as the summary is there."""
        root = self.workspace.root
        return [self.summary, *(root / file.path for file in self._listed(None) or [] if file.path)]

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
        return [self.listed(row) for row in read_table(self.workspace.resolve(found)).to_pylist()]
