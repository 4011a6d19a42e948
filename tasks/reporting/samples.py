"""Reads what a selection was made from, for those who look at it: the files of a shard, row by row side by side.

Whole columns are read one shard at a time. Vectors and texts are read of a sample only, drawn from a few shards, and of
these only the row groups that hold it.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.tasks.workspace.shard_files import ShardFiles
from fineweb_mask.tasks.workspace.workspace import Workspace

SAMPLED_SHARDS = 16
"""Most shards that a sample is drawn from: one of FineWeb's holds a million documents."""
NEAR = 10
"""Documents on either side of a threshold that are looked at."""


class Place(NamedTuple):
    """Where a document stands."""

    shard: int  # in the order of the shards
    row: int


def eligible_table(workspace: Workspace, shard: ShardFiles, columns: Sequence[str]) -> pa.Table:
    """Return a shard's documents that were in a block: columns of `documents`, then `quality` and `selected`.

    A column that the shard lacks is null.
    """
    path = workspace.resolve(shard.documents)
    there = set(pq.read_schema(path).names)
    documents = pq.read_table(path, columns=[name for name in columns if name in there])
    masks = pq.read_table(workspace.resolve(shard.masks), columns=["selected", "block"])
    found = {name: documents[name] if name in there else pa.nulls(masks.num_rows) for name in columns}
    found["quality"] = pq.read_table(workspace.resolve(shard.scores), columns=["quality"])["quality"]
    table = pa.table({**found, "selected": masks["selected"]})
    return table.filter(masks["block"].is_valid())


def eligible_tables(
    workspace: Workspace, shards: Sequence[ShardFiles], columns: Sequence[str], at_most: int | None = None
) -> Iterator[pa.Table]:
    """Yield the tables of all shards, or of so many evenly spaced ones."""
    for index in spread(len(shards), at_most):
        raise_if_stopped()
        yield eligible_table(workspace, shards[index], columns)


def spread(n: int, at_most: int | None) -> range:
    """Return evenly spaced indices below n: all, or at most so many."""
    return range(0, n, 1 if at_most is None else max(1, -(-n // at_most)))


class Drawn(NamedTuple):
    """Documents drawn from all of a kind."""

    places: list[Place]  # in order
    of: int  # how many of the kind the shards hold that it was drawn from
    shards: int  # how many those are


def draw(
    workspace: Workspace, shards: Sequence[ShardFiles], limit: int, generator: np.random.Generator
) -> tuple[Drawn, Drawn]:
    """Draw up to `limit` eligible and up to `limit` selected documents, uniformly over `SAMPLED_SHARDS` shards."""
    chosen = spread(len(shards), SAMPLED_SHARDS)
    eligible, selected = [], []
    for index in chosen:
        raise_if_stopped()
        masks = pq.read_table(workspace.resolve(shards[index].masks), columns=["selected", "block"])
        eligible.append(np.flatnonzero(masks["block"].is_valid().to_numpy()))
        selected.append(np.flatnonzero(masks["selected"].to_numpy()))
    return _drawn(chosen, eligible, limit, generator), _drawn(chosen, selected, limit, generator)


def _drawn(chosen: Sequence[int], rows: list[NDArray[np.intp]], limit: int, generator: np.random.Generator) -> Drawn:
    total = sum(len(part) for part in rows)
    picked = np.sort(generator.choice(total, size=min(limit, total), replace=False))
    ends = np.cumsum([len(part) for part in rows])
    places = []
    for index, part, end in zip(chosen, rows, ends, strict=True):
        inside = picked[(picked >= end - len(part)) & (picked < end)] - (end - len(part))
        places += [Place(index, int(row)) for row in part[inside]]
    return Drawn(places, total, len(chosen))


def vectors_at(workspace: Workspace, shards: Sequence[ShardFiles], places: Sequence[Place]) -> NDArray[Any]:
    """Return the vectors of documents in the order of their places, (n, d) float16 or float32."""
    from fineweb_mask.models.embedding.arrow import vectors_of

    found = [
        vectors_of(take_rows(workspace.resolve(shards[index].embeddings), rows, ["embedding", "scale"]))[0]
        for index, rows in _by_shard(places)
    ]
    return np.concatenate(found) if found else np.empty((0, 1), dtype=np.float32)


def documents_at(
    workspace: Workspace, shards: Sequence[ShardFiles], places: Sequence[Place], columns: Sequence[str]
) -> list[dict[str, Any]]:
    """Return columns of `documents` and the quality of documents, in the order of their places."""
    found: list[dict[str, Any]] = []
    for index, rows in _by_shard(places):
        documents = take_rows(workspace.resolve(shards[index].documents), rows, columns)
        quality = take_rows(workspace.resolve(shards[index].scores), rows, ["quality"])
        found += documents.append_column("quality", quality["quality"]).to_pylist()
    return found


def texts_at(
    workspace: Workspace, shards: Sequence[ShardFiles], places: Sequence[Place], longest: int
) -> tuple[list[int], list[str]]:
    """Return the beginnings of those documents that share one row group of each shard, and which ones these are."""
    index_of = {place: index for index, place in enumerate(places)}
    kept: list[int] = []
    texts: list[str] = []
    for index, rows in _by_shard(places):
        path = workspace.resolve(shards[index].documents)
        near = _in_one_row_group(path, rows)
        kept += [index_of[Place(index, int(row))] for row in near]
        texts += [text[:longest] for text in take_rows(path, near, ["text"])["text"].to_pylist()]
    return kept, texts


def _by_shard(places: Sequence[Place]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    for index, group in groupby(places, key=lambda place: place.shard):
        raise_if_stopped()
        yield index, np.array([place.row for place in group], dtype=np.int64)


def _row_group_ends(file: pq.ParquetFile) -> NDArray[np.int64]:
    sizes = [file.metadata.row_group(index).num_rows for index in range(file.metadata.num_row_groups)]
    return np.cumsum(sizes, dtype=np.int64)


def _in_one_row_group(path: Path, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    with pq.ParquetFile(path) as file:
        groups = np.searchsorted(_row_group_ends(file), rows, side="right")
    return np.asarray(rows[groups == groups[len(groups) // 2]])


def take_rows(path: Path, rows: NDArray[np.int64], columns: Sequence[str]) -> pa.Table:
    """Return rows of a file, ascending, reading only the row groups that hold them; columns it lacks are left out."""
    with pq.ParquetFile(path) as file:
        ends = _row_group_ends(file)
        wanted = [name for name in columns if name in file.schema_arrow.names]
        groups = np.searchsorted(ends, rows, side="right")
        parts = []
        for group in np.unique(groups):
            start = ends[group] - file.metadata.row_group(int(group)).num_rows
            table = file.read_row_group(int(group), columns=wanted)
            parts.append(table.take(pa.array(rows[groups == group] - start)))
    return pa.concat_tables(parts)


class NearThreshold(NamedTuple):
    """A document that was nearly not what it is."""

    place: Place
    block: str
    inclusion: float
    threshold: float  # of its block: halfway between the K-th and the next largest inclusion


def near_threshold(
    workspace: Workspace, shards: Sequence[ShardFiles], each: int = NEAR
) -> tuple[list[NearThreshold], list[NearThreshold]]:
    """Return the kept and the rejected documents nearest to their block's threshold, from all blocks in turn."""
    kept: list[list[NearThreshold]] = []
    rejected: list[list[NearThreshold]] = []
    pending: dict[str, list[pa.Table]] = {}

    def close(blocks: list[str]) -> None:
        for block in blocks:
            sides = _nearest(block, pa.concat_tables(pending.pop(block)), each)
            kept.append(sides[0])
            rejected.append(sides[1])

    for index in sorted(range(len(shards)), key=lambda index: shards[index].masks.name):  # as blocks are made of them
        raise_if_stopped()
        masks = pq.read_table(workspace.resolve(shards[index].masks)).filter(pa.compute.field("block").is_valid())
        masks = masks.append_column("shard", pa.array(np.full(masks.num_rows, index, dtype=np.int32)))
        blocks = masks["block"].unique().to_pylist()
        close([block for block in pending if block not in blocks])
        for block in blocks:
            pending.setdefault(block, []).append(masks.filter(pa.compute.field("block") == block).drop_columns("block"))
    close(list(pending))
    return _in_turn(kept, each), _in_turn(rejected, each)


def _nearest(block: str, rows: pa.Table, each: int) -> tuple[list[NearThreshold], list[NearThreshold]]:
    inclusion = np.nan_to_num(rows["inclusion"].to_numpy())  # a logit may be -inf: never considered
    selected = rows["selected"].to_numpy()
    k = int(selected.sum())
    ordered = np.sort(inclusion)[::-1]
    above, below = ordered[max(k - 1, 0)], ordered[min(k, len(ordered) - 1)]
    threshold = (float(above) + float(below)) / 2
    shard, row = rows["shard"].to_numpy(), rows["row"].to_numpy()
    distance = np.abs(inclusion - threshold)
    sides = []
    for side in (selected, ~selected):
        members = np.flatnonzero(side)
        closest = members[np.lexsort((row[members], shard[members], distance[members]))[:each]]
        sides.append(
            [
                NearThreshold(Place(int(shard[one]), int(row[one])), block, float(inclusion[one]), threshold)
                for one in closest
            ]
        )
    return sides[0], sides[1]


def _in_turn(blocks: list[list[NearThreshold]], each: int) -> list[NearThreshold]:
    """Return the first of every block, then the second of every block, and so on."""
    deepest = max((len(block) for block in blocks), default=0)
    return [block[rank] for rank in range(deepest) for block in blocks if rank < len(block)][:each]
