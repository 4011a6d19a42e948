"""Read labelled texts from a Parquet file; rows without a text or a label are counted and dropped."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fineweb_mask.models.columns import to_numbers
from fineweb_mask.models.errors import DataError
from fineweb_mask.models.names import find
from fineweb_mask.models.settings.quality import LabelSettings
from fineweb_mask.tasks.storage.parquet import read_schema, read_table

NO_LABELS = "must hold text, integers or booleans, its type is {}; for scores set score_column and threshold"


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
    schema = _schema(Path(labels.path))
    text_name, text = _column(schema, labels.text_column, "text_column", labels.path)
    if not (pa.types.is_string(text) or pa.types.is_large_string(text) or pa.types.is_string_view(text)):
        raise LabelsError(f"text_column {labels.text_column!r} must hold text, its type is {text}")
    if labels.label_column is None:
        name, score = _column(schema, labels.score_column, "score_column", labels.path)
        if not (pa.types.is_integer(score) or pa.types.is_floating(score)):
            raise LabelsError(
                f"score_column {labels.score_column!r} must hold numbers, its type is {score}; "
                "for classes rather than scores set label_column"
            )
    else:
        name, label = _column(schema, labels.label_column, "label_column", labels.path)
        types = pa.types
        checks = (types.is_string, types.is_large_string, types.is_integer, types.is_boolean, types.is_floating)
        value = label.value_type if pa.types.is_dictionary(label) else label
        if not any(check(value) for check in checks):
            raise LabelsError(f"label_column {labels.label_column!r} {NO_LABELS.format(label)}")
    return [text_name, name]


def _schema(path: Path) -> pa.Schema:
    try:
        return read_schema(path)
    except FileNotFoundError as error:
        raise LabelsError(f"the labels {str(path)!r} do not exist: check the path") from error
    except (OSError, pa.ArrowInvalid) as error:
        raise LabelsError(f"the labels {str(path)!r} cannot be read as Parquet: {error}") from error


def _column(schema: pa.Schema, name: str, setting: str, path: str) -> tuple[str, pa.DataType]:
    own = find(name, schema.names)
    if own is None or schema.names.count(own) != 1:
        raise LabelsError(f"{path!r} has no single column {name!r}: set {setting} to one of {schema.names}")
    return own, schema.field(own).type


def read_labels(labels: LabelSettings) -> Labelled:
    """Return the labelled texts, without rows that have no text, or no label or score.

    Raises
    ------
    LabelsError
        If the columns are not usable, no row is left, or all rows left are of one class.
    """
    own = check_labels(labels)
    by_score = labels.label_column is None
    name = labels.score_column if by_score else str(labels.label_column)
    try:
        table = read_table(labels.path, columns=list(dict.fromkeys(own)))
    except (OSError, pa.ArrowInvalid) as error:
        raise LabelsError(f"the labels {labels.path!r} are damaged: {error}") from error
    texts, values = (table[column].combine_chunks() for column in own)
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if not by_score and pa.types.is_floating(values.type):  # as pandas writes whole numbers with gaps
        values, lost = to_numbers(values, pa.int64())
        if lost:
            raise LabelsError(f"label_column {name!r} {NO_LABELS.format('one of fractions')}")
    blank = pc.fill_null(pc.equal(pc.utf8_length(pc.utf8_trim_whitespace(texts.cast(pa.large_string()))), 0), True)
    missing = pc.invert(pc.is_finite(values.cast(pa.float64()))) if by_score else pc.is_null(values)
    missing = pc.fill_null(missing, True)
    keep = pc.invert(pc.or_(blank, missing))
    dropped = {
        "no text": int(pc.sum(blank).as_py() or 0),
        "no score" if by_score else "no label": int(pc.sum(pc.and_(missing, pc.invert(blank))).as_py() or 0),
    }
    texts, values = texts.filter(keep), values.filter(keep)
    if not len(texts):
        raise LabelsError(f"the labels {labels.path!r} must hold rows with both a text and a {name!r}")
    positive = _by_score(values, labels) if by_score else _by_label(values, labels)
    return Labelled(texts.to_pylist(), positive, {reason: rows for reason, rows in dropped.items() if rows})


def _by_score(values: pa.Array, labels: LabelSettings) -> NDArray[np.bool_]:
    scores = np.asarray(values.cast(pa.float64()))
    positive = scores >= labels.threshold
    if positive.all() or not positive.any():
        raise LabelsError(
            f"every label falls on the same side of the threshold: set threshold, now {labels.threshold:g}, between "
            f"the scores, which go from {scores.min():g} to {scores.max():g}"
        )
    return np.asarray(positive, dtype=bool)


def _by_label(values: pa.Array, labels: LabelSettings) -> NDArray[np.bool_]:
    classes = sorted(values.unique().to_pylist())
    wanted = labels.positive
    if wanted is None:
        if not set(classes) <= {0, 1}:
            raise LabelsError(
                f"label_column {labels.label_column!r} holds {_some(classes)}: set positive to the label of a good text"
            )
        wanted = "True" if pa.types.is_boolean(values.type) else "1"
    names = np.array([str(value).lower() for value in values.to_pylist()])
    positive = names == wanted.lower()
    if positive.all() or not positive.any():
        raise LabelsError(
            f"label_column {labels.label_column!r} must hold positive ({wanted!r}) and other labels, "
            f"it holds {_some(classes)}"
        )
    return np.asarray(positive, dtype=bool)


def _some(classes: list[object]) -> str:
    shown = ", ".join(repr(value) for value in classes[:8])
    return shown + (f" and {len(classes) - 8} more" if len(classes) > 8 else "")
