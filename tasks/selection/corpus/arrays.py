"""Write and read named arrays as a stage's Parquet file: one row for each array, exactly as it is."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fineweb_mask.models.schemas import ARRAYS
from fineweb_mask.tasks.workspace.references import StageKey
from fineweb_mask.tasks.workspace.stage_parquet import stage_file_writer


def write_arrays(path: Path, key: StageKey, arrays: Mapping[str, NDArray[Any]], details: Mapping[str, Any]) -> None:
    """Write arrays and details; equal ones give equal bytes."""
    with stage_file_writer(path, ARRAYS, key, use_dictionary=False) as writer:
        for name, array in arrays.items():
            columns = [[name], [array.dtype.str], [list(array.shape)], [np.ascontiguousarray(array).tobytes()]]
            writer.write(pa.record_batch(columns, schema=ARRAYS))
        writer.details = dict(details)


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Read the arrays; they can be written to."""
    found: dict[str, NDArray[Any]] = {}
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(1):
            [(name, kind, shape, content)] = zip(*(column.to_pylist() for column in batch.columns), strict=True)
            found[name] = np.frombuffer(content, dtype=kind).reshape(shape).copy()
    return found
