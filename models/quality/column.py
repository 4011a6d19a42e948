"""Take the score from a numeric column of the source, or from annotations that others have made of its rows."""

from collections.abc import Sequence
from decimal import Decimal

import numpy as np
from numpy.typing import NDArray

from fineweb_mask.models.errors import DataError
from fineweb_mask.models.settings.quality import ColumnScorerSettings, NumberSettings, SidecarScorerSettings


class ColumnValueError(DataError):
    """A value of the column is not a score; `position` is its index in the batch."""

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message)
        self.position = position


class ColumnScorer:
    """Score a document with a number from one of its columns, or with one column minus another.

    Examples
    --------
    >>> ColumnScorer(ColumnScorerSettings(column="score", missing=0.0)).score([2.5, None])
    array([2.5, 0. ], dtype=float32)
    >>> settings = ColumnScorerSettings(column="loss_before", minus="loss_after")
    >>> ColumnScorer(settings).score([3.0, 2.0], [2.5, 2.25])
    array([ 0.5 , -0.25], dtype=float32)
    """

    def __init__(self, settings: ColumnScorerSettings) -> None:
        self.settings = settings
        self.columns = tuple(settings.source_columns.values())

    def score(self, *values: Sequence[object]) -> NDArray[np.float32]:
        """Return the column's values as scores, (n,); with those of another column, their differences.

        Raises
        ------
        ColumnValueError
            If a value is not a number, or is null or not finite and `missing` is not set.
        """
        found, *others = map(self._numbers, values, self.columns)
        for less in others:
            found -= less
        if self.settings.missing is not None:
            found[~np.isfinite(found)] = self.settings.missing
        return found

    def _numbers(self, values: Sequence[object], column: str) -> NDArray[np.float32]:
        """Return values of a column as numbers, (n,), NaN for those that are not, if `missing` is set."""
        for position, value in enumerate(values):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float | Decimal)):
                raise ColumnValueError(
                    f"the column {column!r} must hold numbers, its value is {value!r:.80}: "
                    f"set the column of the scorer {self.settings.name!r} to a numeric one",
                    position,
                )
        numbers = np.array([np.nan if value is None else float(value) for value in values], dtype=np.float64)  # type: ignore[arg-type]
        with np.errstate(over="ignore"):
            scores = numbers.astype(np.float32)
        absent = np.flatnonzero(~np.isfinite(scores))
        where = f"the column {column!r} is null or not finite in {len(absent):,} of {len(values):,} rows of a batch"
        _check_missing(absent, where, self.settings)
        scores[absent] = np.nan
        return scores


class SidecarScorer:
    """Score a document with the annotation of its row of the source file.

    Parameters
    ----------
    settings
        Of the scorer.
    annotations
        One value of each row of the source file, (rows,); NaN for one that has none.

    Examples
    --------
    >>> settings = SidecarScorerSettings(path="{shard}.npy", missing=0.0)
    >>> SidecarScorer(settings, np.array([2.5, np.nan, 4.0], dtype=np.float32)).score([0, 1])
    array([2.5, 0. ], dtype=float32)
    """

    columns: tuple[str, ...] = ("source_row",)

    def __init__(self, settings: SidecarScorerSettings, annotations: NDArray[np.float32]) -> None:
        self.settings = settings
        self._annotations = annotations

    def score(self, rows: Sequence[int]) -> NDArray[np.float32]:
        """Return the annotations of these rows of the source file, (n,).

        Raises
        ------
        ColumnValueError
            If one is not finite and `missing` is not set.
        """
        scores = self._annotations[np.asarray(rows, dtype=np.int64)]
        absent = np.flatnonzero(~np.isfinite(scores))
        if len(absent):
            where = f"the annotation of row {rows[absent[0]]:,} of the source file is null or not finite"
            _check_missing(absent, where, self.settings)
            scores[absent] = self.settings.missing
        return scores


def _check_missing(absent: NDArray[np.intp], where: str, settings: NumberSettings) -> None:
    """Raise ColumnValueError if values are absent, at these positions of a batch, and `missing` is not set."""
    if len(absent) and settings.missing is None:
        raise ColumnValueError(
            f"{where}: set `missing` of the scorer {settings.name!r} to the score of such rows", int(absent[0])
        )
