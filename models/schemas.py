"""Arrow schemas of the stages' files: one file per shard and stage, row-aligned through the `row` column."""

from collections.abc import Sequence
from typing import Literal

import pyarrow as pa

ROW = pa.field("row", pa.uint32(), nullable=False)

FINEWEB = pa.schema(
    [
        pa.field("text", pa.string()),
        pa.field("id", pa.string()),
        pa.field("dump", pa.string()),
        pa.field("url", pa.string()),
        pa.field("date", pa.string()),
        pa.field("file_path", pa.string()),
        pa.field("language", pa.string()),
        pa.field("language_score", pa.float64()),
        pa.field("token_count", pa.int64()),
    ]
)
"""The nine columns of FineWeb (https://huggingface.co/datasets/HuggingFaceFW/fineweb)."""

MEASURED = pa.schema(
    [
        pa.field("n_chars", pa.uint32(), nullable=False),
        pa.field("content_hash", pa.binary(16), nullable=False),
    ]
)
"""What ingest adds to a document: its length in characters and the hash of its normalised text."""

MASKS = pa.schema(
    [
        ROW,
        pa.field("selected", pa.bool_(), nullable=False),
        pa.field("inclusion", pa.float32()),  # null: the document was in no block
        pa.field("block", pa.string()),
    ]
)

DUPLICATES = pa.schema([ROW])
"""Rows whose text an earlier shard already holds."""

RESERVED_COLUMNS = frozenset({"row", "n_chars", "content_hash", "quality", "inclusion", "block", "selected"})
"""Names that the pipeline writes; a source column of that name cannot be carried along."""


def documents_schema(extra: Sequence[pa.Field] = ()) -> pa.Schema:
    """Return the schema of an ingested shard: row, FineWeb's columns, the measures, then `extra` columns."""
    return pa.schema([ROW, *FINEWEB, *MEASURED, *extra])


def scores_schema(scorers: Sequence[str]) -> pa.Schema:
    """Return the schema of a scored shard: row, one float32 column per scorer, and the combined quality."""
    columns = [pa.field(name, pa.float32(), nullable=False) for name in (*scorers, "quality")]
    return pa.schema([ROW, *columns])


def embeddings_schema(dimensions: int, precision: Literal["float16", "float32", "int8"]) -> pa.Schema:
    """Return the schema of an embedded shard: row, `dimensions` values as a fixed-size list, for int8 a scale."""
    value = {"float16": pa.float16(), "float32": pa.float32(), "int8": pa.int8()}[precision]
    fields = [ROW, pa.field("embedding", pa.list_(value, dimensions))]
    if precision == "int8":
        fields.append(pa.field("scale", pa.float32()))  # a vector is its integers times this
    return pa.schema(fields)
