"""Divide a corpus into partitions, and make the jobs that write its dataset.

Where partitions begin depends on the corpus and the settings alone, never on how many jobs run at once. A partition is
as many shards, in the order of their names, as hold `materialize.partition_size` bytes of documents: a small corpus is
one partition, whose files are what one job would write. With more than 512 of them the size is doubled until there are
not, so that the number of jobs stays small.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import duckdb
import pyarrow as pa

from fineweb_mask.models.settings import MaterializeSettings
from fineweb_mask.tasks.dataset.partition import PartitionJob, ShuffleJob, SurveyJob, fingerprints
from fineweb_mask.tasks.reporting.breakdown import sampled_for_edges
from fineweb_mask.tasks.source.discovery import SourceShard
from fineweb_mask.tasks.workspace.references import StageFile, digest
from fineweb_mask.tasks.workspace.shard_files import ShardFiles

MOST_PARTITIONS = 512
NOT_IN_FILES = {"output", "memory_limit", "threads", "spill"}
"""Settings of which no byte of the dataset depends."""
ON_THE_CARD = {"title", "license", "source_datasets"}
"""Settings of which only the card and the record depend."""


class Partitioning:
    """The partitions of a corpus, and the jobs on them.

    Parameters
    ----------
    root
        The workspace's folder, or its URL.
    shards
        What is selected from.
    sources
        The source's file of every shard, by its name.
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
        self._groups = partitions([shard.documents.bytes for shard in self._shards], settings.partition_size)
        self._at_once = min(at_once, len(self._groups))
        self.inputs = digest(fingerprints(self._shards))
        """Digest of all shards' fingerprints."""
        made_with = [SurveyJob.stage.version, ShuffleJob.stage.version, PartitionJob.stage.version]
        written = settings.model_dump(exclude=NOT_IN_FILES | ON_THE_CARD)
        packages = [pa.__version__, duckdb.__version__]  # other ones may write other bytes
        self.version = digest([self.inputs, written, made_with, packages])[:8]
        """The version of the dataset's files: eight hex digits."""

    @property
    def is_shuffled(self) -> bool:
        """Whether rows move between partitions."""
        return self._settings.shuffle and len(self._groups) > 1

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
        return [ShuffleJob(**self._of_shards(number, survey)) for number in range(len(self._groups))]

    def partitions(self, survey: StageFile, shuffled: Sequence[StageFile] = ()) -> list[PartitionJob]:
        """Return the jobs that write the dataset's files: of the shards, or of the streams that were `shuffled`."""
        numbers = range(len(self._groups))
        if not shuffled:
            return [PartitionJob(**self._of_shards(number, survey)) for number in numbers]
        return [
            PartitionJob(**self._common(number, survey), first=0, shards=[], sources=[], shuffled=tuple(shuffled))
            for number in numbers
        ]

    def _of_shards(self, number: int, survey: StageFile) -> dict[str, Any]:
        shards = [self._shards[index] for index in self._groups[number]]
        sources = [self._sources[shard.name] for shard in shards]
        first = self._groups[number].start
        return {**self._common(number, survey), "first": first, "shards": shards, "sources": sources}

    def _common(self, number: int, survey: StageFile) -> dict[str, Any]:
        return {
            "root": self._root,
            "settings": self._settings,
            "version": self.version,
            "number": number,
            "partitions": len(self._groups),
            "survey": survey,
            "at_once": self._at_once,
        }


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
