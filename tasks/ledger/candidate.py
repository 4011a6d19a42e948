"""Draw a sample of files that may join a corpus, each document with the same chance, as a small source of its own."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from fineweb_mask.models.errors import DataError, SettingsError
from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.schemas import FINEWEB
from fineweb_mask.models.settings import PipelineSettings, SourceSettings
from fineweb_mask.models.settings.quality import SidecarScorerSettings
from fineweb_mask.tasks.source.columns import check_columns, settle
from fineweb_mask.tasks.source.discovery import SourceError, SourceShard, discover
from fineweb_mask.tasks.source.first_rows import number_of_rows
from fineweb_mask.tasks.source.reader import ShardReader
from fineweb_mask.tasks.storage.atomic import make_folder
from fineweb_mask.tasks.storage.parquet import write_table
from fineweb_mask.tasks.workspace.job import BadShardError

SAMPLE, FEWEST = 2_000, 200
"""Documents that are drawn, and at least."""
MOST_FILES = {"parquet": 32, "jsonl": 8, "warc": 8}
"""Files that are drawn from; those other than Parquet are read as a whole."""
SOURCE = "source"


class Drawn(NamedTuple):
    """How a sample was drawn."""

    documents: int  # of all files
    rows: int  # of the sample
    files: list[str]  # that were drawn from; the shards of the sample are `s000`, `s001`, ...
    of_files: int
    unread: list[str]  # why files could not be read

    @property
    def fraction(self) -> float:
        """The share of the documents that is in the sample."""
        return min(1.0, self.rows / max(1, self.documents))


def find_candidate(files: Sequence[str], settings: PipelineSettings, sample: int) -> list[SourceShard]:
    """Return the candidate's files, after checking that a sample of them can be scored as the recipe's source is.

    Raises
    ------
    SettingsError
        If there is none, the sample is too small, or a file lacks a column that the recipe names.
    """
    if sample < FEWEST:
        raise SettingsError(f"--sample must be at least {FEWEST}, fewer tell nothing: received {sample:,}")
    if any(isinstance(scorer, SidecarScorerSettings) for scorer in settings.quality.scorers):
        raise SettingsError(
            "price cannot score a sample by annotations in files beside the source (a scorer of kind sidecar): use a "
            "workspace that scores by a model or by a column"
        )
    found = list[SourceShard]()
    for path in files:
        try:
            source = SourceSettings.model_validate({**settings.source.model_dump(), "path": path, "format": "auto"})
            found += discover(source)
        except SourceError as error:
            raise SourceError(str(error).replace("source.path", "FILES")) from error
    shards = settle(list({shard.url: shard for shard in found}.values()), settings.source)
    check_columns(settings, shards)
    return shards


def draw(folder: Path, shards: Sequence[SourceShard], source: SourceSettings, sample: int, seed: int = 0) -> Drawn:
    """Write about `sample` random documents of some files into `folder/source`, one file for each that is drawn from.

    If there are more files than are drawn from, these are drawn by their size, and as many documents of each.

    Raises
    ------
    DataError
        If no document can be read.
    """
    dice = np.random.default_rng(seed)
    most = min(MOST_FILES[shard.format] for shard in shards)
    sizes = np.array([max(1, shard.bytes) for shard in shards], dtype=np.float64)
    all_read = len(shards) <= most
    places = range(len(shards)) if all_read else np.sort(dice.choice(len(shards), most, False, sizes / sizes.sum()))
    readers, unread = dict[int, ShardReader](), list[str]()
    for place in track("files", list(map(int, places))):
        try:
            readers[place] = ShardReader(shards[place], source)
        except BadShardError as error:
            unread.append(str(error))
    rows = np.array([reader.rows for reader in readers.values()], dtype=np.int64)
    if not rows.sum():
        reason = unread[0] if unread else "they have no rows: give files with documents"
        raise DataError(f"FILES: no document can be read of {len(shards):,} files: {reason}")
    make_folder(folder / SOURCE)
    if all_read:
        each = dice.multivariate_hypergeometric(rows, min(sample, int(rows.sum())))
    else:
        each = np.minimum(rows, -(-sample // len(rows)))
    files = list[str]()
    for (place, reader), count, total in track("files", list(zip(readers.items(), each, rows, strict=True))):
        chosen = np.sort(dice.choice(total, count, replace=False))
        table = pa.Table.from_batches(list(reader.some(chosen)), pa.schema([*FINEWEB, *reader.extra]))
        write_table(table.combine_chunks(), folder / SOURCE / f"s{len(files):03d}.parquet")
        files.append(shards[place].relative)
    documents = int(rows.sum()) if all_read else max(number_of_rows(shards), int(each.sum()))
    return Drawn(documents, int(each.sum()), files, len(shards), unread)
