"""Convert vectors to Arrow columns and back, without a Python object per value."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

if TYPE_CHECKING:
    from fineweb_mask.models.forward.batches import Encoded


def vector_batch(rows: pa.Array, encoded: "Encoded", schema: pa.Schema) -> pa.RecordBatch:
    """Return a record batch of row numbers (n,) uint32 and n vectors; a bad vector is null.

    `schema` is a result of `embeddings_schema`.
    """
    kind = schema.field("embedding").type
    values = pa.array(encoded.vectors.astype(kind.value_type.to_pandas_dtype(), copy=False).reshape(-1))
    vectors = pa.FixedSizeListArray.from_arrays(values, type=kind, mask=pa.array(encoded.bad))
    return pa.record_batch([rows, vectors], schema=schema)


def vectors_of(table: pa.Table) -> tuple[NDArray[np.floating[Any]], NDArray[np.bool_]]:
    """Return a table's vectors, (n, d) float16 or float32, and a mask (n,) of those that are not null."""
    column = table["embedding"].combine_chunks()
    dimensions = column.type.list_size
    present = column.is_valid().to_numpy(zero_copy_only=False)
    values = column.values.slice(column.offset * dimensions, len(column) * dimensions).to_numpy(zero_copy_only=False)
    return values.reshape(-1, dimensions), present
