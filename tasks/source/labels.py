"""Read labelled texts from a Parquet file; rows without a text or a label are counted and dropped."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fineweb_mask.models.columns import read_as_text, stored_type, to_numbers, to_text
from fineweb_mask.models.errors import DataError
from fineweb_mask.models.names import find
from fineweb_mask.models.settings.quality import LabelSettings
from fineweb_mask.tasks.storage.parquet import read_schema, read_table

TEXT = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
NUMBER = (pa.types.is_integer, pa.types.is_floating)
HOLDS = {
    "text_column": (TEXT, "text", ""),
    "score_column": (NUMBER, "numbers", "; for classes rather than scores set label_column"),
    "label_column": (
        (*TEXT, *NUMBER, pa.types.is_boolean),
        "text, integers or booleans",
        "; for scores set score_column and threshold",
    ),
}
"""What a column may hold, by the setting that names it, and what to do about another one."""


class LabelsError(DataError):
    """Labels cannot be used; the message says what to change."""


@dataclass
class Labelled:
    """Labelled texts."""

    texts: list[str]  # n
    positive: NDArray[np.bool_]  # (n,), True for a good text
    dropped: dict[str, int]  # rows, by reason


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
    for setting in ("text_column", "score_column" if labels.label_column is None else "label_column"):
        name, (checks, what, remedy) = getattr(labels, setting), HOLDS[setting]
        own = find(name, schema.names)
        if own is None or schema.names.count(own) != 1:
            raise LabelsError(f"{labels.path!r} has no single column {name!r}: set {setting} to one of {schema.names}")
        kind = schema.field(own).type
        if not any(check(stored_type(kind)) for check in checks):
            raise LabelsError(f"{setting} {name!r} must hold {what}, its type is {kind}{remedy}")
        found.append(own)
    return found


def read_labels(labels: LabelSettings) -> Labelled:
    """Return the labelled texts, without rows that have no text, or no label or score.

    Raises
    ------
    LabelsError
        If the columns are not usable, no row is left, or all rows left are of one class.
    """
    own = check_labels(labels)
    by_score = labels.label_column is None
    name = labels.score_column if by_score else labels.label_column
    try:
        table = read_table(labels.path, columns=list(dict.fromkeys(own)))
    except (OSError, pa.ArrowInvalid) as error:
        raise LabelsError(f"the labels {labels.path!r} are damaged: {error}") from error
    texts, values = (table[column].combine_chunks() for column in own)
    texts = read_as_text(texts)
    if by_score:
        values, _ = to_numbers(values, pa.float64())
    else:
        if pa.types.is_floating(values.type):  # as pandas writes whole numbers with gaps
            values, lost = to_numbers(values, pa.int64())
            if lost:
                _, what, remedy = HOLDS["label_column"]
                raise LabelsError(f"label_column {name!r} must hold {what}, its type is one of fractions{remedy}")
        values = to_text(values)
    blank = pc.fill_null(pc.equal(pc.utf8_length(pc.utf8_trim_whitespace(texts)), 0), True)
    missing = pc.and_(pc.is_null(values), pc.invert(blank))
    keep = pc.invert(pc.or_(blank, missing))
    dropped = {"no text": pc.sum(blank).as_py(), "no score" if by_score else "no label": pc.sum(missing).as_py()}
    texts, values = texts.filter(keep), values.filter(keep)
    if not len(texts):
        raise LabelsError(f"the labels {labels.path!r} must hold rows with both a text and a {name!r}")
    positive = _by_score(values, labels) if by_score else _by_label(values, labels)
    return Labelled(texts.to_pylist(), positive, {reason: rows for reason, rows in dropped.items() if rows})


def _by_score(values: pa.Array, labels: LabelSettings) -> NDArray[np.bool_]:
    scores = np.asarray(values)
    positive = scores >= labels.threshold
    if positive.all() or not positive.any():
        raise LabelsError(
            f"every label falls on the same side of the threshold: set threshold, now {labels.threshold:g}, between "
            f"the scores, which go from {scores.min():g} to {scores.max():g}"
        )
    return np.asarray(positive, dtype=bool)


def _by_label(values: pa.Array, labels: LabelSettings) -> NDArray[np.bool_]:
    classes = sorted(values.unique().to_pylist())
    shown = ", ".join(map(repr, classes[:8])) + (f" and {len(classes) - 8} more" if len(classes) > 8 else "")
    wanted = [labels.positive.lower()] if labels.positive is not None else ["1", "true"]
    if labels.positive is None and not (set(classes) <= {"0", "1"} or set(classes) <= {"false", "true"}):
        raise LabelsError(
            f"label_column {labels.label_column!r} holds {shown}: set positive to the label of a good text"
        )
    positive = np.isin([name.lower() for name in values.to_pylist()], wanted)
    if positive.all() or not positive.any():
        raise LabelsError(
            f"label_column {labels.label_column!r} must hold positive ({wanted[0]!r}) and other labels, "
            f"it holds {shown}"
        )
    return positive
