"""Select from one Parquet file of vectors and scores, outside any workspace: what the paper's own script does."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import BaseModel

from fineweb_mask.models.errors import DataError
from fineweb_mask.models.settings.selection import SelectionSettings
from fineweb_mask.tasks.storage.atomic import atomic_write
from fineweb_mask.tasks.storage.parquet import VerifiedFile, read_schema, read_table

BATCH_ROWS = 10_000


class VectorFileError(DataError):
    """A file of vectors and scores cannot be used."""


class FileSelection(BaseModel):
    """What was selected from a file."""

    output: str
    documents: int
    selected: int
    objective: float
    random_objective: float
    terms: dict[str, float]
    upper_bound: float | None
    gap: float | None
    seconds: float


def select_file(
    source: Path,
    output: Path,
    settings: SelectionSettings,
    *,
    id_column: str = "chunk_id",
    quality_column: str = "quality_score",
    feature_column: str = "feature_arr",
    token_column: str | None = None,
    device: str,
) -> FileSelection:
    """Select from a file and write the selected rows' id, quality and inclusion.

    Parameters
    ----------
    source
        Parquet file with an id, a quality and a list column of floats, all of one length.
    output
        Parquet file to write.
    settings
        What to maximise and how.
    id_column, quality_column, feature_column, token_column
        The columns' names.
    device
        `cpu`, `cuda` or `cuda:N`.

    Raises
    ------
    VectorFileError
        If a column is missing, or a vector is null or of another length than the others.
    SelectionInputError
        If the numbers cannot be selected from.
    """
    columns = list(dict.fromkeys([id_column, quality_column, *filter(None, [token_column])]))
    held = read_schema(source).names
    for name in (*columns, feature_column):
        if name not in held:
            raise VectorFileError(f"{str(source)!r} has no column {name!r}, it has {held}")
    from fineweb_mask.models.selection.inputs import SelectionInputError
    from fineweb_mask.models.selection.selector import select

    features, table = read_vectors(source, feature_column), read_table(source, columns=columns)
    tokens, started = None if token_column is None else table[token_column].to_numpy(), time.perf_counter()
    try:
        selection = select(features, table[quality_column].to_numpy(), settings, device=device, tokens=tokens)
    except SelectionInputError as error:
        names = f"features: {feature_column!r}, quality: {quality_column!r}"
        raise SelectionInputError(f"{source.name} ({names}): {error}") from error
    seconds = time.perf_counter() - started
    selected = table.select([id_column, quality_column]).take(pa.array(selection.indices))
    selected = selected.append_column("inclusion", pa.array(selection.inclusion[selection.indices]))
    with atomic_write(output) as partial:
        pq.write_table(selected, partial, compression="zstd")
    return FileSelection(
        output=str(output),
        documents=len(features),
        selected=len(selection.indices),
        objective=selection.objective,
        random_objective=selection.random_objective,
        terms=selection.terms,
        upper_bound=selection.upper_bound,
        gap=selection.gap,
        seconds=round(seconds, 3),
    )


def read_vectors(path: Path, column: str) -> NDArray[Any]:
    """Return a list column as one array, (n, d) float16 or float32, filled batch by batch.

    Raises
    ------
    VectorFileError
        If it is no list of numbers, or a row is null or its length is not that of the first row.
    """
    features, start = np.empty((0, 0), dtype=np.float32), 0
    with VerifiedFile(path) as file:
        kind = file.schema_arrow.field(column).type
        if not pa.types.is_floating(getattr(kind, "value_type", pa.null())):
            raise VectorFileError(f"column {column!r} must be a list of floating-point numbers, its type is {kind}")
        for batch in file.iter_batches(BATCH_ROWS, columns=[column]):
            lengths = pc.fill_null(pc.list_value_length(batch[column]), 0).to_numpy()
            if not start:
                dtype = np.float16 if pa.types.is_float16(kind.value_type) else np.float32
                features = np.empty((file.metadata.num_rows, lengths[0]), dtype=dtype)
            wrong = np.flatnonzero((lengths != features.shape[1]) | (lengths == 0))
            if len(wrong):
                raise VectorFileError(
                    f"column {column!r}, row {start + int(wrong[0])}: the vector is null or not of length "
                    f"{features.shape[1]} as in the first row; drop such rows"
                )
            values = batch[column].flatten().to_numpy(zero_copy_only=False)
            features[start : start + len(lengths)] = values.reshape(len(lengths), -1)
            start += len(lengths)
    return features
