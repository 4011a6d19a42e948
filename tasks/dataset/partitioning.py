"""Divide a corpus into partitions, and make the jobs that write them.

Where partitions begin depends on the source and the settings alone, never on how many jobs run at once. A partition is
as many shards, in the order of their names, as have source files of `materialize.partition_size` bytes: a small corpus
is one partition, whose files are what one job would write. With more than 512 of them the size is doubled until there
are not, so that the number of jobs stays small.
"""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import accumulate, pairwise

import duckdb
import pyarrow as pa

from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.models.schemas import with_text
from fineweb_mask.models.settings import MaterializeSettings
from fineweb_mask.tasks.dataset.partition import NO_FOOTER, PartitionJob, fingerprints, text_of
from fineweb_mask.tasks.dataset.parts import Parts
from fineweb_mask.tasks.dataset.rows import common_schema
from fineweb_mask.tasks.source.discovery import SourceShard
from fineweb_mask.tasks.storage.parquet import DamagedFileError
from fineweb_mask.tasks.workspace.references import digest
from fineweb_mask.tasks.workspace.shard_files import ShardFiles
from fineweb_mask.tasks.workspace.stage_parquet import read_footer
from fineweb_mask.tasks.workspace.workspace import Workspace

MOST_PARTITIONS = 512
FOOTER_THREADS = 16
NOT_IN_FILES = {"output", "memory_limit", "spill", "export"}
"""Settings of which no byte of the dataset depends."""
ON_THE_CARD = {"title", "license", "source_datasets"}
"""Settings of which only the card and the record depend."""
FORMER_VERSIONS = [1, 3]
"""Of stages that were once: the version of a dataset's files holds them, so that files uploaded before are found."""


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
        made_with = [*FORMER_VERSIONS, PartitionJob.stage.version]
        written = settings.digested(exclude=NOT_IN_FILES | ON_THE_CARD)
        packages = [pa.__version__, duckdb.__version__]  # other ones may write other bytes
        self.version = digest([self.inputs, written, made_with, packages])[:8]
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
        return text_of(common_schema(list(threads.map(partial(_schema, workspace), documents))))


def _schema(workspace: Workspace, path: str) -> pa.Schema:
    raise_if_stopped()
    footer = read_footer(workspace.root / path)
    if footer is None:
        raise DamagedFileError(str(workspace.root / path), NO_FOOTER)
    return with_text(footer.schema.to_arrow_schema().remove_metadata())


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
