"""Read what a selection needs of a shard: quality, tokens, random keys, vectors, and which documents are candidates."""

import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fineweb_mask.models.columns import label
from fineweb_mask.models.names import find
from fineweb_mask.models.schemas import vectors_of
from fineweb_mask.tasks.storage.parquet import VerifiedFile, read_schema, read_table
from fineweb_mask.tasks.workspace.references import REPEATED, ShardFiles, digest
from fineweb_mask.tasks.workspace.stage_parquet import duplicate_rows, read_scores
from fineweb_mask.tasks.workspace.workspace import Workspace

VECTORS_AT_ONCE = 4_096
"""Rows that are read at the same time, where those of a whole block are wanted."""

STREAMED: dict[str, Any] = {"pre_buffer": False, "buffer_size": 1 << 22}
"""How files of vectors are read: by default PyArrow holds the whole file while batches of it are read."""

PART_ROWS = 65_536
"""Rows of a shard that are judged at the same time."""


class ShardColumns(NamedTuple):
    """What a selection reads of a shard, the vectors aside."""

    quality: NDArray[np.float32]  # (rows,) NaN of duplicates, which have none
    candidate: NDArray[np.bool_]  # (rows,): neither a duplicate nor without a vector
    tokens: NDArray[np.int64]  # (rows,)
    excluded: dict[str, int]  # rows that are no candidates, by reason


def read_columns(workspace: Workspace, shard: ShardFiles) -> ShardColumns:
    """Read the quality, candidates and tokens of a shard, and how many rows are excluded, by reason."""
    from fineweb_mask.models.documents import token_counts

    candidate = np.ones(shard.rows, dtype=bool)
    candidate[duplicate_rows(workspace, shard.duplicates)] = False
    with_vector = has_vector(workspace, shard)
    excluded = {REPEATED: 0, "bad_vector": int((candidate & ~with_vector).sum()), **shard.duplicates.details}
    counts = read_table(workspace.resolve(shard.documents), columns=["token_count", "n_chars"])
    [quality] = read_scores(workspace, shard, ["quality"]).values()
    tokens = token_counts(counts["token_count"], counts["n_chars"])
    return ShardColumns(quality, candidate & with_vector, tokens, excluded)


def read_groups(workspace: Workspace, shard: ShardFiles, column: str) -> NDArray[np.object_]:
    """Read the values of a column of a shard's documents as texts, (rows,); null, or a column it lacks, is ""."""
    path = workspace.resolve(shard.documents)
    if (own := find(column, read_schema(path).names)) is None:  # files may have different columns
        return np.full(shard.rows, "", dtype=object)
    groups = np.empty(shard.rows, dtype=object)
    start = 0
    with VerifiedFile(path) as file:
        for batch in file.iter_batches(PART_ROWS, columns=[own]):
            values = batch[own].to_pylist()
            groups[start : start + len(values)] = [sys.intern(label(value)) for value in values]
            start += len(values)
    return groups


def has_vector(workspace: Workspace, shard: ShardFiles) -> NDArray[np.bool_]:
    """Return which documents of a shard have a vector, (rows,); duplicates have none."""
    found = np.zeros(shard.rows, dtype=bool)
    columns = ["row"] if shard.embeddings.details.get("bad_vectors") == 0 else ["row", "embedding"]
    with VerifiedFile(workspace.resolve(shard.embeddings), **STREAMED) as file:
        for batch in file.iter_batches(VECTORS_AT_ONCE, columns=columns):
            found[batch["row"].to_numpy()] = batch[columns[-1]].is_valid().to_numpy(zero_copy_only=False)
    return found


def random_keys(seed: int, shard: str, rows: int) -> NDArray[np.float64]:
    """Draw a number from 0 to 1 for every row, (rows,), which depends on the seed, the shard's name and the row only.

    >>> bool((random_keys(0, "a", 5)[:3] == random_keys(0, "a", 3)).all())
    True
    """
    return np.random.default_rng(int(digest([seed, shard])[:16], 16)).random(rows)


def read_vectors(
    workspace: Workspace, shard: ShardFiles, rows: NDArray[np.int64], at_once: int | None = None
) -> Iterator[tuple[slice, NDArray[np.float16]]]:
    """Yield the vectors of some rows of a shard, ascending, with their places in `rows`: (b, d) each."""
    with VerifiedFile(workspace.resolve(shard.embeddings), **STREAMED) as file:
        for batch in file.iter_batches(at_once or VECTORS_AT_ONCE, columns=["row", "embedding"]):
            held = batch["row"].to_numpy()
            first, last = np.searchsorted(rows, [held[0], int(held[-1]) + 1])
            if first < last:
                chosen = pa.array(np.searchsorted(held, rows[first:last]))
                yield slice(int(first), int(last)), vectors_of(pa.Table.from_batches([batch]).take(chosen))
