"""Read labelled texts from a Parquet file; rows without a text or a score are left out."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fineweb_mask.models.columns import read_as_text, stored_type, to_numbers
from fineweb_mask.models.errors import DataError
from fineweb_mask.models.names import find
from fineweb_mask.models.settings.quality import LabelSettings
from fineweb_mask.tasks.storage.parquet import read_schema, read_table

HOLDS = {
    "text_column": ((pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view), "text"),
    "score_column": ((pa.types.is_integer, pa.types.is_floating), "numbers, such as 1 and 0 for classes"),
}
"""What a column must hold, by the setting that names it."""


class LabelsError(DataError):
    """Labels cannot be used; the message says what to change."""


def check_labels(labels: LabelSettings) -> list[str]:
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
    for setting, (checks, what) in HOLDS.items():
        name = getattr(labels, setting)
        own = find(name, schema.names)
        if own is None or schema.names.count(own) != 1:
            raise LabelsError(f"{labels.path!r} has no single column {name!r}: set {setting} to one of {schema.names}")
        kind = schema.field(own).type
        if not any(check(stored_type(kind)) for check in checks):
            raise LabelsError(f"{setting} {name!r} must hold {what}, its type is {kind}")
        found.append(own)
    return found


def read_labels(labels: LabelSettings) -> tuple[list[str], NDArray[np.bool_]]:
    """Return n labelled texts, and which are good, (n,), without rows that have no text or no score.

    Raises
    ------
    LabelsError
        If the columns are not usable, no row is left, or all rows left are of one class.
    """
    own = check_labels(labels)
    try:
        table = read_table(labels.path, columns=list(dict.fromkeys(own)))
    except (OSError, pa.ArrowInvalid) as error:
        raise LabelsError(f"the labels {labels.path!r} are damaged: {error}") from error
    texts, values = (table[column].combine_chunks() for column in own)
    texts, (values, _) = read_as_text(texts), to_numbers(values, pa.float64())
    has_text = pc.greater(pc.utf8_length(pc.utf8_trim_whitespace(texts)), 0)
    keep = pc.and_(pc.fill_null(has_text, False), pc.is_valid(values))
    texts, scores = texts.filter(keep).to_pylist(), np.asarray(values.filter(keep))
    if not texts:
        raise LabelsError(f"the labels {labels.path!r} must hold rows with both a text and a {labels.score_column!r}")
    positive = scores >= labels.threshold
    if positive.all() or not positive.any():
        raise LabelsError(
            f"every label falls on the same side of the threshold: set threshold, now {labels.threshold:g}, between "
            f"the scores, which go from {scores.min():g} to {scores.max():g}"
        )
    return texts, np.asarray(positive, dtype=bool)
