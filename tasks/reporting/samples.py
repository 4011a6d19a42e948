"""Read a selection's inputs and masks side by side, for reports.

Whole columns are read one shard at a time. Vectors and texts are read only for a sample from a few shards, and only
from the row groups that contain it.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.models.schemas import vectors_of
from fineweb_mask.tasks.storage.parquet import VerifiedFile, read_schema, read_table
from fineweb_mask.tasks.workspace.references import ShardFiles
from fineweb_mask.tasks.workspace.stage_parquet import read_scores, row_group_ends, take_rows
from fineweb_mask.tasks.workspace.workspace import Workspace

SAMPLED_SHARDS = 16
"""Maximum number of shards in a sample: one shard of FineWeb has a million documents."""


class DocumentRef(NamedTuple):
    """The index of a document's shard, and its row in that shard."""

    shard: int
    row: int


def files_read(shards: Sequence[ShardFiles]) -> list[list[str]]:
    """Return the names and fingerprints of the files of shards that are looked into."""
    return [
        [file.name, file.fingerprint]
        for shard in shards
        for file in (shard.documents, shard.scores, shard.embeddings, shard.masks)
    ]


def eligible_table(workspace: Workspace, shard: ShardFiles, columns: Sequence[str]) -> pa.Table:
    """Return the eligible documents of a shard: columns of `documents`, then `quality` and `selected`.

    A document is eligible if the selection put it into a block. A column that the shard lacks is null.
    """
    path = workspace.resolve(shard.documents)
    present = set(read_schema(path).names)
    documents = read_table(path, columns=[name for name in columns if name in present])
    masks = read_table(workspace.resolve(shard.masks), columns=["selected", "block"])
    found = {name: documents[name] if name in present else pa.nulls(masks.num_rows) for name in columns}
    found |= read_scores(workspace, shard, ["quality"])
    table = pa.table({**found, "selected": masks["selected"]})
    return table.filter(masks["block"].is_valid())


def evenly_spaced(n: int, at_most: int) -> range:
    """Return evenly spaced indices below `n`, at most `at_most`."""
    return range(0, n, max(1, -(-n // at_most)))


class Sample(NamedTuple):
    """A uniform sample of the eligible or the selected documents."""

    documents: list[DocumentRef]  # ascending
    population: int  # documents that it was drawn from
    shards: int  # shards that it was drawn from


def draw(
    workspace: Workspace, shards: Sequence[ShardFiles], limit: int, generator: np.random.Generator
) -> tuple[Sample, Sample]:
    """Draw up to `limit` eligible and up to `limit` selected documents, uniformly over `SAMPLED_SHARDS` shards."""
    chosen = evenly_spaced(len(shards), SAMPLED_SHARDS)
    nothing = np.empty((0, 2), dtype=np.int64)
    eligible, selected = [nothing], [nothing]
    for index in chosen:
        raise_if_stopped()
        masks = read_table(workspace.resolve(shards[index].masks), columns=["selected", "block"])
        for found, is_one in ((eligible, masks["block"].is_valid()), (selected, masks["selected"])):
            rows = np.flatnonzero(is_one.to_numpy())
            found.append(np.column_stack([np.full_like(rows, index), rows]))

    def sample(found: list[NDArray[np.int64]]) -> Sample:
        places = np.concatenate(found)
        picked = np.sort(generator.choice(len(places), size=min(limit, len(places)), replace=False))
        return Sample([DocumentRef(*place) for place in places[picked].tolist()], len(places), len(chosen))

    return sample(eligible), sample(selected)


def vectors_at(workspace: Workspace, shards: Sequence[ShardFiles], documents: Sequence[DocumentRef]) -> NDArray[Any]:
    """Return the vectors of documents, (n, d) float16 or float32; `documents` must be ascending."""
    found = [
        vectors_of(take_rows(workspace.resolve(shards[index].embeddings), rows, ["embedding"]))
        for index, rows in _by_shard(documents)
    ]
    return np.concatenate(found) if found else np.empty((0, 1), dtype=np.float32)


def quality_at(
    workspace: Workspace, shards: Sequence[ShardFiles], documents: Sequence[DocumentRef], score: str
) -> NDArray[np.float32]:
    """Return a score of documents, (n,); `documents` must be ascending."""
    found = [
        take_rows(workspace.resolve(shards[index].scores), rows, [score])[score].to_numpy()
        for index, rows in _by_shard(documents)
    ]
    return np.concatenate([np.empty(0), *found]).astype(np.float32)


def documents_at(
    workspace: Workspace, shards: Sequence[ShardFiles], documents: Sequence[DocumentRef], columns: Sequence[str]
) -> list[dict[str, Any]]:
    """Return columns of documents; `documents` must be ascending."""
    return [
        row
        for index, rows in _by_shard(documents)
        for row in take_rows(workspace.resolve(shards[index].documents), rows, columns).to_pylist()
    ]


def texts_at(
    workspace: Workspace, shards: Sequence[ShardFiles], documents: Sequence[DocumentRef], longest: int
) -> tuple[list[int], list[str]]:
    """Read the first `longest` characters of documents, from one row group of each shard only.

    Returns
    -------
    list of int
        Positions in `documents` of those in that row group.
    list of str
        The beginnings of their texts.
    """
    index_of = {document: index for index, document in enumerate(documents)}
    kept: list[int] = []
    texts: list[str] = []
    for index, rows in _by_shard(documents):
        with VerifiedFile(workspace.resolve(shards[index].documents)) as file:
            groups = np.searchsorted(row_group_ends(file), rows, side="right")
        near = rows[groups == groups[len(groups) // 2]]
        found = take_rows(workspace.resolve(shards[index].documents), near, ["text"])
        texts += [text[:longest] for text in found["text"].to_pylist()]
        kept += [index_of[DocumentRef(index, row)] for row in near.tolist()]
    return kept, texts


def _by_shard(documents: Sequence[DocumentRef]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    for index, group in groupby(documents, key=lambda document: document.shard):
        raise_if_stopped()
        yield index, np.array([document.row for document in group], dtype=np.int64)
