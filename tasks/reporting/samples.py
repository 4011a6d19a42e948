"""Read a selection's inputs and masks side by side, for reports.

Whole columns are read one shard at a time. Vectors and texts are read only for a sample from a few shards, and only
from the row groups that contain it.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.models.schemas import vectors_of
from fineweb_mask.tasks.storage.parquet import VerifiedFile, read_schema, read_table
from fineweb_mask.tasks.workspace.references import ShardFiles, StageFile
from fineweb_mask.tasks.workspace.stage_parquet import documents_of, read_scores, row_group_ends, take_rows
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
    eligible, selected = [], []
    for index in chosen:
        raise_if_stopped()
        masks = read_table(workspace.resolve(shards[index].masks), columns=["selected", "block"])
        eligible.append(np.flatnonzero(masks["block"].is_valid().to_numpy()))
        selected.append(np.flatnonzero(masks["selected"].to_numpy()))
    return _sample(chosen, eligible, limit, generator), _sample(chosen, selected, limit, generator)


def _sample(chosen: Sequence[int], rows: list[NDArray[np.intp]], limit: int, generator: np.random.Generator) -> Sample:
    total = sum(len(part) for part in rows)
    picked = np.sort(generator.choice(total, size=min(limit, total), replace=False))
    ends = np.cumsum([len(part) for part in rows])
    documents = []
    for index, part, end in zip(chosen, rows, ends, strict=True):
        inside = picked[(picked >= end - len(part)) & (picked < end)] - (end - len(part))
        documents += [DocumentRef(index, int(row)) for row in part[inside]]
    return Sample(documents, total, len(chosen))


def vectors_at(workspace: Workspace, shards: Sequence[ShardFiles], documents: Sequence[DocumentRef]) -> NDArray[Any]:
    """Return the vectors of documents, (n, d) float16 or float32; `documents` must be ascending."""
    found = [
        vectors_of(_rows_of(workspace, shards[index].embeddings, rows, ["embedding"]))
        for index, rows in _by_shard(documents)
    ]
    return np.concatenate(found) if found else np.empty((0, 1), dtype=np.float32)


def quality_at(
    workspace: Workspace, shards: Sequence[ShardFiles], documents: Sequence[DocumentRef], score: str = "quality"
) -> NDArray[np.float32]:
    """Return the quality of documents, or one score of theirs, (n,); `documents` must be ascending."""
    found = [_rows_of(workspace, shards[index].scores, rows, [score]) for index, rows in _by_shard(documents)]
    return np.concatenate([np.empty(0), *(table[score].to_numpy() for table in found)]).astype(np.float32)


def kept_at(workspace: Workspace, shards: Sequence[ShardFiles], documents: Sequence[DocumentRef]) -> NDArray[np.bool_]:
    """Return whether documents are selected, (n,); `documents` must be ascending."""
    found = [_rows_of(workspace, shards[index].masks, rows, ["selected"]) for index, rows in _by_shard(documents)]
    return np.concatenate([np.empty(0), *(table["selected"].to_numpy() for table in found)]).astype(bool)


def documents_at(
    workspace: Workspace, shards: Sequence[ShardFiles], documents: Sequence[DocumentRef], columns: Sequence[str]
) -> list[dict[str, Any]]:
    """Return columns and the quality of documents; `documents` must be ascending."""
    found: list[dict[str, Any]] = []
    for index, rows in _by_shard(documents):
        table = documents_of(workspace, shards[index].documents, rows, columns)
        quality = _rows_of(workspace, shards[index].scores, rows, ["quality"])
        found += table.append_column("quality", quality["quality"]).to_pylist()
    return found


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
        near = _in_one_row_group(workspace.resolve(shards[index].documents), rows)
        found = documents_of(workspace, shards[index].documents, near, ["text"])
        texts += [text[:longest] for text in found["text"].to_pylist()]
        kept += [index_of[DocumentRef(index, int(row))] for row in near]
    return kept, texts


def _rows_of(workspace: Workspace, file: StageFile, rows: NDArray[np.int64], columns: Sequence[str]) -> pa.Table:
    return take_rows(workspace.resolve(file), rows, columns)


def _by_shard(documents: Sequence[DocumentRef]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    for index, group in groupby(documents, key=lambda document: document.shard):
        raise_if_stopped()
        yield index, np.array([document.row for document in group], dtype=np.int64)


def _in_one_row_group(path: Path, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    with VerifiedFile(path) as file:
        groups = np.searchsorted(row_group_ends(file), rows, side="right")
    return np.asarray(rows[groups == groups[len(groups) // 2]])
