"""Write and read named arrays as a stage's Parquet file: one row for each array, exactly as it is."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fineweb_mask.models.schemas import ARRAYS
from fineweb_mask.tasks.workspace.references import StageKey
from fineweb_mask.tasks.workspace.stage_parquet import open_parquet, stage_file_writer


def write_arrays(path: Path, key: StageKey, arrays: Mapping[str, NDArray[Any]], details: Mapping[str, Any]) -> None:
    """Write arrays and details; equal ones give equal bytes.

    Those with the same prefix, up to the first `/`, can be read without the others if they are together.
    """
    with stage_file_writer(path, ARRAYS, key, use_dictionary=False) as writer:
        before = None
        for name, array in arrays.items():
            prefix = name.partition("/")[0]
            if prefix != before:
                writer.flush()
            before = prefix
            columns = [[name], [array.dtype.str], [list(array.shape)], [np.ascontiguousarray(array).tobytes()]]
            writer.write(pa.record_batch(columns, schema=ARRAYS))
        writer.details = dict(details)


def read_arrays(path: Path, prefix: str | None = None) -> dict[str, NDArray[Any]]:
    """Read the arrays, or those with a prefix; they can be written to."""
    found: dict[str, NDArray[Any]] = {}
    with open_parquet(path) as file:
        groups = list(range(file.metadata.num_row_groups))
        if prefix is not None:
            first = [file.metadata.row_group(group).column(0).statistics.min for group in groups]
            groups = [group for group in groups if first[group].partition("/")[0] == prefix]
        for batch in file.iter_batches(1, row_groups=groups):
            [(name, kind, shape, content)] = zip(*(column.to_pylist() for column in batch.columns), strict=True)
            found[name] = np.frombuffer(content, dtype=kind).reshape(shape).copy()
    return found
