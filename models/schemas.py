"""Define the Arrow schemas of the stages' files.

Each stage writes one file per shard; the `row` column aligns the files of a shard.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

ROW = pa.field("row", pa.uint32(), nullable=False)

SOURCE_ROW = pa.field("source_row", pa.uint32(), nullable=False)
"""A document's row in its source file, from 0, where dropped rows count, too, and blank lines of JSON do not."""

FINEWEB = pa.schema(
    [
        *((name, pa.string()) for name in ("text", "id", "dump", "url", "date", "file_path", "language")),
        ("language_score", pa.float64()),
        ("token_count", pa.int64()),
    ]
)
"""The nine columns of FineWeb (https://huggingface.co/datasets/HuggingFaceFW/fineweb)."""

MEASURED = pa.schema(
    [
        pa.field("n_chars", pa.uint32(), nullable=False),
        pa.field("content_hash", pa.binary(16), nullable=False),
    ]
)
"""Columns that ingest adds: the length in characters and the hash of the normalised text."""

MASKS = pa.schema(
    [
        ROW,
        pa.field("selected", pa.bool_(), nullable=False),
        pa.field("inclusion", pa.float32()),  # null for a document outside all blocks
        pa.field("block", pa.string()),
    ]
)

SIGNATURES = pa.schema(
    [pa.field("key", pa.uint64(), nullable=False), ROW, pa.field("next", pa.uint64(), nullable=False)]
)
"""The bands of the signature of each document, in the order of their keys; `next` is of the bands that follow."""

DUPLICATES = pa.schema(
    [
        pa.field("shard", pa.string(), nullable=False),
        ROW,
        pa.field("reason", pa.string(), nullable=False),
        pa.field("twin_shard", pa.string()),
        pa.field("twin_row", pa.uint32()),
        pa.field("similarity", pa.float32()),
    ]
)
"""Rows of all shards that are not kept, and why; of a copy, what it is one of, and of a near one, how similar it is."""

DROPPED = pa.schema(
    [
        SOURCE_ROW,
        pa.field("reason", pa.string(), nullable=False),
        pa.field("twin", pa.string()),  # what has the text, or a part of it
        *FINEWEB,  # the text is null without `ingest.keep_dropped`, and what could not be read
    ]
)
"""Rows of a source file that ingest dropped; the source's own columns follow, lists, structs and these names aside.

`twin` is the id of a document of `ingest.against`, or the file, row, part and score of an item of
`ingest.decontaminate`; other reasons have none.
"""

LOSSES = pa.schema(
    [
        pa.field("by_column", pa.string(), nullable=False),
        pa.field("value", pa.string()),  # null: of the documents without one
        pa.field("stage", pa.string()),
        pa.field("reason", pa.string()),  # null: no step drops any of the group
        pa.field("documents", pa.int64(), nullable=False),  # of the group that come to the step
        pa.field("dropped", pa.int64(), nullable=False),
    ]
)
"""What every step drops of the documents with each value of a column, over all shards."""

ROUTES = pa.schema([ROW, pa.field("cell", pa.int32())])
"""The block of alike documents that each one is in; null for those that are not selected from."""

ARRAYS = pa.schema(
    [
        pa.field("name", pa.string(), nullable=False),
        pa.field("dtype", pa.string(), nullable=False),  # as NumPy writes it
        pa.field("shape", pa.list_(pa.int64()), nullable=False),
        pa.field("content", pa.large_binary(), nullable=False),  # in C order
    ]
)
"""Named arrays."""

RESERVED_COLUMNS = frozenset(
    {"row", "source_row", "n_chars", "content_hash", "quality", "inclusion", "block", "selected"}
)
"""Columns that the pipeline writes; a source column with one of these names cannot be kept."""


def documents_schema(extra: Sequence[pa.Field] = ()) -> pa.Schema:
    """Return the schema of an ingested shard: `row`, `source_row`, FineWeb's columns, `MEASURED`, the `extra` ones."""
    return pa.schema([ROW, SOURCE_ROW, *FINEWEB, *MEASURED, *extra])


def dropped_schema(extra: Sequence[pa.Field] = ()) -> pa.Schema:
    """Return the schema of what ingest dropped of a shard: `DROPPED`, then those of the `extra` columns that it has."""
    names = DROPPED.names
    return pa.schema([*DROPPED, *(one for one in extra if not pa.types.is_nested(one.type) and one.name not in names)])


def scores_schema(scorers: Sequence[str]) -> pa.Schema:
    """Return the schema of a scored shard: `row`, one float32 column per scorer, and the combined `quality`."""
    return pa.schema([ROW, *(pa.field(name, pa.float32(), nullable=False) for name in (*scorers, "quality"))])


def embeddings_schema(dimensions: int) -> pa.Schema:
    """Return the schema of an embedded shard: `row`, and `embedding` as a fixed-size list."""
    return pa.schema([ROW, pa.field("embedding", pa.list_(pa.float16(), dimensions))])


def vectors_of(table: pa.Table) -> NDArray[np.float16]:
    """Return the vectors of a table of embeddings, (n, d) float16; those of null are not defined."""
    column = table["embedding"].combine_chunks()
    dimensions = column.type.list_size
    values = column.values.slice(column.offset * dimensions, len(column) * dimensions)
    vectors: NDArray[np.float16] = values.to_numpy(zero_copy_only=False).reshape(-1, dimensions)
    return vectors
