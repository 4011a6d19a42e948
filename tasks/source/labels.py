"""Read labelled texts from a Parquet file; rows without a text or a score are left out."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fineweb_mask.models.columns import is_text, kept, read_as_text, stored_type
from fineweb_mask.models.errors import DataError
from fineweb_mask.models.names import find
from fineweb_mask.models.settings.quality import LabelSettings
from fineweb_mask.tasks.storage.parquet import read_schema, read_table

NUMBERS = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)


class LabelsError(DataError):
    """Labels cannot be used; the message says what to change."""


def check_labels(labels: LabelSettings, text_column: str = "text") -> list[str]:
    """Return the file's names of the columns; check that it has them, with usable types, reading only its schema.

    Raises
    ------
    LabelsError
        If the file cannot be read, or a column is missing or of the wrong type.
    """
    try:
        schema = read_schema(Path(labels.path))
    except FileNotFoundError as error:
        raise LabelsError(f"the labels {labels.path!r} do not exist: check the path") from error
    except (OSError, pa.ArrowInvalid) as error:
        raise LabelsError(f"the labels {labels.path!r} cannot be read as Parquet: {error}") from error
    found = []
    for name, what, remedy in (
        (text_column, "text", "rename, or name by --text-column,"),
        (labels.score_column, "numbers or booleans", "set score_column to"),
    ):
        own = find(name, schema.names)
        if own is None or schema.names.count(own) != 1:
            raise LabelsError(f"{labels.path!r} has no single column {name!r}: {remedy} one of {schema.names}")
        kind = stored_type(schema.field(own).type)
        if not (is_text(kind) if what == "text" else any(check(kind) for check in NUMBERS)):
            raise LabelsError(
                f"the column {name!r} must hold {what}, its type is {kind}: name another; classes become numbers by "
                "DuckDB, SELECT text, (label = 'good')::INT AS score"
            )
        found.append(own)
    return found


def read_labels(labels: LabelSettings, text_column: str = "text") -> tuple[list[str], NDArray[np.bool_]]:
    """Return n labelled texts, and which are good, (n,), without rows that have no text or no score.

    Raises
    ------
    LabelsError
        If the columns are not usable, no row is left, or all rows left are of one class.
    """
    own = check_labels(labels, text_column)
    try:
        table = read_table(labels.path, columns=own)
    except (OSError, pa.ArrowInvalid) as error:
        raise LabelsError(f"the labels {labels.path!r} are damaged: {error}") from error
    texts, scores = (table[column].combine_chunks() for column in own)
    texts = read_as_text(texts)
    scores, _ = kept(scores.cast(pa.int8()) if pa.types.is_boolean(scores.type) else scores, pa.float64())
    has_text = pc.greater(pc.utf8_length(pc.utf8_trim_whitespace(texts)), 0)
    keep = pc.and_(pc.fill_null(has_text, False), pc.is_valid(scores))
    found, values = texts.filter(keep).to_pylist(), np.asarray(scores.filter(keep))
    if not found:
        raise LabelsError(f"the labels {labels.path!r} must hold rows with both a text and a {labels.score_column!r}")
    positive = np.asarray(values >= labels.threshold, dtype=bool)
    if positive.all() or not positive.any():
        raise LabelsError(
            f"every label falls on the same side of the threshold: set threshold, now {labels.threshold:g}, between "
            f"the scores, which go from {values.min():g} to {values.max():g}"
        )
    return found, positive
