"""Read a selection's inputs and masks at single documents, for reports.

A document is told by its place: the index of its shard, and its row in that shard. Places are ascending. Of a shard's
files only the row groups are read that hold a document.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.models.schemas import vectors_of
from fineweb_mask.tasks.storage.parquet import VerifiedFile, read_table
from fineweb_mask.tasks.workspace.references import ShardFiles
from fineweb_mask.tasks.workspace.stage_parquet import row_group_ends, take_rows
from fineweb_mask.tasks.workspace.workspace import Workspace

SAMPLED_SHARDS = 16
"""Maximum number of shards in a sample: one shard of FineWeb has a million documents."""

Places = NDArray[np.int64]
"""(n, 2): shards and rows of documents."""


def files_read(shards: Sequence[ShardFiles]) -> list[list[str]]:
    """Return the names and fingerprints of the files of shards that are looked into."""
    return [
        [file.name, file.fingerprint]
        for shard in shards
        for file in (shard.documents, shard.scores, shard.embeddings, shard.masks)
    ]


def evenly_spaced(n: int, at_most: int) -> range:
    """Return evenly spaced indices below `n`, at most `at_most`."""
    return range(0, n, max(1, -(-n // at_most)))


def eligible_documents(
    workspace: Workspace, shards: Sequence[ShardFiles], chosen: Sequence[int], step: int = 1
) -> tuple[Places, NDArray[np.bool_]]:
    """Return every `step`-th document of the chosen shards that the selection put into a block: places, and selected.

    The second is (n,): which of them are selected.
    """
    places, selected = [np.empty((0, 2), dtype=np.int64)], [np.empty(0, dtype=bool)]
    for index in chosen:
        raise_if_stopped()
        masks = read_table(workspace.resolve(shards[index].masks), columns=["selected", "block"])
        rows = np.flatnonzero(masks["block"].is_valid())[::step]
        places.append(np.column_stack([np.full_like(rows, index), rows]))
        selected.append(masks["selected"].to_numpy()[rows])
    return np.concatenate(places), np.concatenate(selected)


class Sample(NamedTuple):
    """A uniform sample of the eligible or the selected documents."""

    places: Places
    population: int  # documents that it was drawn from
    shards: int  # shards that it was drawn from


def draw(
    workspace: Workspace, shards: Sequence[ShardFiles], limit: int, generator: np.random.Generator
) -> tuple[Sample, Sample]:
    """Draw up to `limit` eligible and up to `limit` selected documents, uniformly over `SAMPLED_SHARDS` shards."""
    chosen = evenly_spaced(len(shards), SAMPLED_SHARDS)
    eligible, is_selected = eligible_documents(workspace, shards, chosen)

    def sample(places: Places) -> Sample:
        picked = np.sort(generator.choice(len(places), size=min(limit, len(places)), replace=False))
        return Sample(places[picked], len(places), len(chosen))

    return sample(eligible), sample(eligible[is_selected])


def rows_at(
    workspace: Workspace,
    shards: Sequence[ShardFiles],
    places: Places,
    stage: str,
    columns: Sequence[str] | None = None,
) -> pa.Table:
    """Return what a stage of `ShardFiles` has of documents: these columns, or all; null where a shard lacks one.

    A column that all shards lack is left out.
    """
    found = list(_by_shard(places)) or [(0, np.empty(0, dtype=np.int64))]
    files = [workspace.resolve(getattr(shards[index], stage)) for index, _ in found]
    parts = [take_rows(file, rows, columns) for file, (_, rows) in zip(files, found, strict=True)]
    return pa.concat_tables(parts, promote_options="permissive")


def vectors_at(workspace: Workspace, shards: Sequence[ShardFiles], places: Places) -> NDArray[Any]:
    """Return the vectors of documents, (n, d) float16 or float32."""
    return vectors_of(rows_at(workspace, shards, places, "embeddings", ["embedding"]))


def texts_at(
    workspace: Workspace, shards: Sequence[ShardFiles], places: Places, longest: int
) -> tuple[list[int], list[str]]:
    """Read the first `longest` characters of documents, from one row group of each shard only.

    Returns
    -------
    list of int
        Positions in `places` of those in that row group.
    list of str
        The beginnings of their texts.
    """
    kept: list[int] = []
    texts: list[str] = []
    first = 0
    for index, rows in _by_shard(places):
        path = workspace.resolve(shards[index].documents)
        with VerifiedFile(path) as file:
            groups = np.searchsorted(row_group_ends(file), rows, side="right")
        is_near = groups == groups[len(groups) // 2]
        kept += (first + np.flatnonzero(is_near)).tolist()
        texts += [text[:longest] for text in take_rows(path, rows[is_near], ["text"])["text"].to_pylist()]
        first += len(rows)
    return kept, texts


def _by_shard(places: Places) -> Iterator[tuple[int, NDArray[np.int64]]]:
    for index in np.unique(places[:, 0]).tolist():
        raise_if_stopped()
        yield index, places[places[:, 0] == index, 1]
