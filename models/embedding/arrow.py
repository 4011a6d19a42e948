"""Convert vectors to Arrow columns and back, without a Python object per value."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

if TYPE_CHECKING:
    from fineweb_mask.models.forward.batches import Encoded

INT8_MAX = 127


def vector_batch(rows: pa.Array, encoded: "Encoded", schema: pa.Schema) -> pa.RecordBatch:
    """Return a record batch of row numbers (n,) uint32 and n vectors; a bad vector is null.

    `schema` is a result of `embeddings_schema`. For int8, values are rounded to 1/127 of the vector's largest absolute
    value.
    """
    kind = schema.field("embedding").type
    missing = pa.array(encoded.bad)
    columns = [rows]
    if pa.types.is_int8(kind.value_type):
        scale = np.abs(encoded.vectors).max(axis=1).astype(np.float32) / INT8_MAX
        values = np.rint(encoded.vectors / np.where(encoded.bad, 1, scale)[:, None]).astype(np.int8)
        columns += [_lists(values, kind, missing), pa.array(scale, mask=encoded.bad)]
    else:
        values = encoded.vectors.astype(kind.value_type.to_pandas_dtype(), copy=False)
        columns.append(_lists(values, kind, missing))
    return pa.record_batch(columns, schema=schema)


def _lists(values: NDArray[Any], kind: pa.DataType, missing: pa.Array) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), type=kind, mask=missing)


def vectors_of(table: pa.Table) -> tuple[NDArray[np.floating[Any]], NDArray[np.bool_]]:
    """Return a table's vectors, (n, d) float16 or float32, and a mask (n,) of those that are not null."""
    column = table["embedding"].combine_chunks()
    dimensions = column.type.list_size
    present = column.is_valid().to_numpy(zero_copy_only=False)
    values = column.values.slice(column.offset * dimensions, len(column) * dimensions).to_numpy(zero_copy_only=False)
    values = values.reshape(-1, dimensions)
    if "scale" in table.column_names:
        import torch  # it multiplies float16 ten times as fast, and takes seconds to import

        scale = torch.from_numpy(table["scale"].fill_null(0.0).to_numpy().astype(np.float16))
        values = torch.tensor(values, dtype=torch.float16).mul_(scale[:, None]).numpy()
    return values, present
