"""Divide a corpus into partitions, and make the jobs that write its dataset.

Where partitions begin depends on the source and the settings alone, never on how many jobs run at once. A partition is
as many shards, in the order of their names, as have source files of `materialize.partition_size` bytes: a small corpus
is one partition, whose files are what one job would write. With more than 512 of them the size is doubled until there
are not, so that the number of jobs stays small. All this is known before any work, so that a partition can be written
while later shards are not yet read.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa

from fineweb_mask.models.settings import MaterializeSettings
from fineweb_mask.tasks.dataset.partition import (
    CountJob,
    PartitionJob,
    ShuffleJob,
    SurveyJob,
    columns_of,
    fingerprints,
    read_columns,
)
from fineweb_mask.tasks.reporting.breakdown import sampled_for_edges
from fineweb_mask.tasks.source.discovery import SourceShard
from fineweb_mask.tasks.workspace.references import StageFile, digest
from fineweb_mask.tasks.workspace.shard_files import ShardFiles
from fineweb_mask.tasks.workspace.workspace import Workspace

MOST_PARTITIONS = 512
NOT_IN_FILES = {"output", "memory_limit", "spill", "export"}
"""Settings of which no byte of the dataset depends."""
ON_THE_CARD = {"title", "license", "source_datasets"}
"""Settings of which only the card and the record depend."""


class Partition(NamedTuple):
    """Some of the shards that are selected from."""

    number: int
    first: int  # place of the first of them among all
    shards: list[ShardFiles]


class Partitioning:
    """The partitions of a corpus, and the jobs on them.

    Parameters
    ----------
    root
        The workspace's folder, or its URL.
    shards
        What is selected from: all of it, or, to write some partitions before others, what is there of it.
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
        self._root = root
        self._shards = sorted(shards, key=lambda shard: shard.name)
        self._sources = sources
        self._settings = settings
        self._divided = divided(sources, settings)
        self._partitions = self._of_names()
        self._at_once = min(at_once, len(self._divided))
        self._corpus = digest([[name, sources[name].fingerprint] for name in sorted(sources)])
        self.inputs = digest(fingerprints(self._shards))
        """Digest of all shards' fingerprints."""
        made_with = [SurveyJob.stage.version, ShuffleJob.stage.version, PartitionJob.stage.version]
        written = settings.digested(exclude=NOT_IN_FILES | ON_THE_CARD)
        packages = [pa.__version__, duckdb.__version__]  # other ones may write other bytes
        self.version = digest([self.inputs, written, made_with, packages])[:8]
        """The version of the dataset's files: eight hex digits."""

    @property
    def is_shuffled(self) -> bool:
        """Whether rows move between partitions."""
        return self._settings.shuffle and len(self._divided) > 1

    def survey(self) -> SurveyJob:
        """Return the job that comes first."""
        return SurveyJob(
            root=self._root,
            settings=self._settings,
            version=self.version,
            documents=[shard.documents.path for shard in self._shards],
            inputs=self.inputs,
            rows=sum(shard.rows for shard in self._shards),
            sampled=sampled_for_edges(self._shards),
        )

    def shuffles(self, survey: StageFile) -> list[ShuffleJob]:
        """Return the jobs that write every partition's rows into streams, if the dataset is shuffled in streams."""
        return [ShuffleJob(**self._of_shards(one, columns_of(survey))) for one in self._partitions]

    def partitions(self, survey: StageFile, shuffled: Sequence[StageFile] = ()) -> list[PartitionJob]:
        """Return the jobs that write the dataset's files: of the shards, or of the streams that were `shuffled`."""
        columns = columns_of(survey)
        if not shuffled:
            return [PartitionJob(**self._of_shards(one, columns)) for one in self._partitions]
        return [
            PartitionJob(**self._common(number, columns), first=0, shards=[], sources=[], shuffled=tuple(shuffled))
            for number in range(len(self._partitions))
        ]

    def early(self, number: int) -> PartitionJob | None:
        """Return the job that writes a partition, while shards of others are not ready; None if it has no shards.

        It is the same job as is made later, if the corpus has no column that these shards have not.
        """
        for one in self._partitions:
            if one.number == number:
                documents = [shard.documents.path for shard in one.shards]
                return PartitionJob(**self._of_shards(one, read_columns(Workspace(self._root), documents)))
        return None

    def counts(self, survey: StageFile) -> list[CountJob]:
        """Return the jobs that count what the card shows of every partition."""
        common = {"root": self._root, "settings": self._settings, "version": self.version, "survey": survey}
        return [CountJob(**common, number=one.number, shards=one.shards) for one in self._partitions]

    def _of_names(self) -> list[Partition]:
        """Return the partitions that have shards; streams of a shuffle are numbered without gaps."""
        by_name = {shard.name: shard for shard in self._shards}
        found: list[Partition] = []
        first = 0
        for number, names in enumerate(self._divided):
            if shards := [by_name[name] for name in names if name in by_name]:
                found.append(Partition(len(found) if self.is_shuffled else number, first, shards))
                first += len(shards)
        return found

    def _of_shards(self, partition: Partition, columns: str) -> dict[str, Any]:
        shards = partition.shards
        sources = [self._sources[shard.name] for shard in shards]
        return {
            **self._common(partition.number, columns),
            "first": partition.first,
            "shards": shards,
            "sources": sources,
        }

    def _common(self, number: int, columns: str) -> dict[str, Any]:
        return {
            "root": self._root,
            "settings": self._settings,
            "version": self.version,
            "number": number,
            "partitions": len(self._partitions) if self.is_shuffled else len(self._divided),
            "columns": columns,
            "corpus": self._corpus,
            "at_once": self._at_once,
        }


def divided(sources: Mapping[str, SourceShard], settings: MaterializeSettings) -> list[list[str]]:
    """Return the names of the shards of every partition."""
    names = sorted(sources)
    found = partitions([sources[name].bytes for name in names], settings.partition_size)
    return [[names[place] for place in places] for places in found]


def partitions(sizes: Sequence[int], target: int) -> list[range]:
    """Divide shards into partitions, in their order.

    Parameters
    ----------
    sizes
        Bytes of every shard.
    target
        Bytes from which a partition is full.

    Examples
    --------
    >>> partitions([3, 3, 3, 3, 3], target=6)
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
