"""Select from one Parquet file of vectors and scores, outside any workspace: what the paper's own script does."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
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


class VectorColumns(BaseModel):
    """Names of the columns of a file of vectors and scores."""

    id: str = "chunk_id"
    quality: list[str] = ["quality_score"]
    features: str = "feature_arr"
    tokens: str | None = None

    @property
    def numbers(self) -> list[str]:
        """All but that of the vectors, each once."""
        return list(dict.fromkeys([self.id, *self.quality, *filter(None, [self.tokens])]))


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


def check_vector_file(path: Path, columns: VectorColumns) -> None:
    """Check that a file has the columns, before anything is read.

    Raises
    ------
    VectorFileError
        If it is not Parquet or lacks a column.
    """
    try:
        schema = read_schema(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise VectorFileError(f"{str(path)!r} cannot be read as Parquet: {error}") from error
    for name in (*columns.numbers, columns.features):
        if name not in schema.names:
            raise VectorFileError(f"{str(path)!r} has no column {name!r}, it has {schema.names}")
    for name in columns.quality:
        kind = schema.field(name).type
        if not (pa.types.is_floating(kind) or pa.types.is_integer(kind)):
            raise VectorFileError(f"column {name!r} must hold numbers, its type is {kind}")
    if not _is_vector(schema.field(columns.features).type):
        raise VectorFileError(
            f"column {columns.features!r} must be a list of floating-point numbers, its type is "
            f"{schema.field(columns.features).type}"
        )


def _is_vector(kind: pa.DataType) -> bool:
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return bool(is_list and pa.types.is_floating(kind.value_type))


def select_file(
    source: Path,
    output: Path,
    columns: VectorColumns,
    settings: SelectionSettings,
    *,
    device: str,
) -> FileSelection:
    """Select from a file and write the selected rows' id, quality and inclusion.

    Parameters
    ----------
    source
        Parquet file with an id, one or more quality columns and a list column of floats, all of one length.
    output
        Parquet file to write.
    columns
        The columns' names.
    settings
        What to maximise and how.
    device
        `cpu`, `cuda` or `cuda:N`.

    Raises
    ------
    VectorFileError
        If a vector is null or of another length than the others.
    SelectionInputError
        If the numbers cannot be selected from.
    """
    from fineweb_mask.models.selection.inputs import SelectionInputError, SelectorInputs
    from fineweb_mask.models.selection.selector import select

    features = read_vectors(source, columns.features)
    table = read_table(source, columns=columns.numbers)
    quality = np.stack([_numbers(table[name]) for name in columns.quality], axis=1)
    tokens = None if columns.tokens is None else table[columns.tokens].to_numpy()
    started = time.perf_counter()
    try:
        selection = select(
            features,
            quality[:, 0] if quality.shape[1] == 1 else quality,
            settings,
            device=device,
            tokens=tokens,
            also=SelectorInputs(scores=dict(zip(columns.quality, quality.T, strict=True))),
        )
    except SelectionInputError as error:
        raise SelectionInputError(
            f"{source.name} (features: {columns.features!r}, quality: {columns.quality}): {error}"
        ) from error
    seconds = time.perf_counter() - started
    selected = table.select([columns.id, *columns.quality]).take(pa.array(selection.indices))
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


def _numbers(column: pa.ChunkedArray) -> NDArray[np.float32]:
    """Return a column as float32 (n,); a null becomes NaN, which the selection refuses by its row."""
    return np.asarray(column.cast(pa.float64()).to_numpy(), dtype=np.float32)


def read_vectors(path: Path, column: str) -> NDArray[Any]:
    """Return a list column as one array, (n, d) float16 or float32, filled batch by batch.

    Raises
    ------
    VectorFileError
        If a row is null or its length is not that of the first row.
    """
    with VerifiedFile(path) as file:
        is_half = pa.types.is_float16(file.schema_arrow.field(column).type.value_type)
        rows = file.metadata.num_rows
        features: NDArray[Any] | None = None
        start = 0
        for batch in file.iter_batches(BATCH_ROWS, columns=[column]):
            vectors = batch[column]
            lengths = vectors.value_lengths().to_numpy(zero_copy_only=False) if len(vectors) else np.empty(0)
            if features is None:
                dimensions = 0 if not len(lengths) or np.isnan(float(lengths[0])) else int(lengths[0])
                features = np.empty((rows, dimensions), dtype=np.float16 if is_half else np.float32)
            wrong = np.flatnonzero(~(lengths == features.shape[1]) | ~vectors.is_valid().to_numpy(zero_copy_only=False))
            if len(wrong) or features.shape[1] == 0:
                row = start + int(wrong[0] if len(wrong) else 0)
                raise VectorFileError(
                    f"column {column!r}, row {row}: the vector is null or not of length {features.shape[1]} as in "
                    "the first row; drop such rows"
                )
            features[start : start + len(vectors)] = vectors.flatten().to_numpy().reshape(len(vectors), -1)
            start += len(vectors)
    if features is None:
        raise VectorFileError(f"{path.name} must hold at least one row")
    return features
