"""Take the score from a numeric column of the source, or from annotations that others have made of its rows."""

from collections.abc import Sequence
from decimal import Decimal

import numpy as np
from numpy.typing import NDArray

from fineweb_mask.models.errors import DataError
from fineweb_mask.models.settings.quality import ColumnScorerSettings, SidecarScorerSettings


class ColumnValueError(DataError):
    """A value is not a score; `position` is its index in the batch."""

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message)
        self.position = position


class NumberScorer:
    """Score a document with a number that is there: that of a column, the difference of two, or an annotation.

    Parameters
    ----------
    settings
        Of the scorer.
    annotations
        Of a sidecar: one value of each row of the source file, (rows,); NaN for one that has none.

    Examples
    --------
    >>> NumberScorer(ColumnScorerSettings(column="score", missing=0.0)).score([2.5, None])
    array([2.5, 0. ], dtype=float32)
    >>> settings = ColumnScorerSettings(column="loss_before", minus="loss_after")
    >>> NumberScorer(settings).score([3.0, 2.0], [2.5, 2.25])
    array([ 0.5 , -0.25], dtype=float32)
    >>> settings = SidecarScorerSettings(path="{shard}.npy", missing=0.0)
    >>> NumberScorer(settings, np.array([2.5, np.nan, 4.0], dtype=np.float32)).score([0, 1])
    array([2.5, 0. ], dtype=float32)
    """

    def __init__(
        self,
        settings: ColumnScorerSettings | SidecarScorerSettings,
        annotations: NDArray[np.float32] | None = None,
    ) -> None:
        self.settings, self._annotations = settings, annotations
        self.columns = tuple(settings.source_columns.values()) if annotations is None else ("source_row",)

    def score(self, *values: Sequence[object]) -> NDArray[np.float32]:
        """Return the scores of documents, (n,), from the values of the column or both, or their rows of the source.

        Raises
        ------
        ColumnValueError
            If a value is not a number, or a score is null or not finite and `missing` is not set.
        """
        if self._annotations is not None:
            found = self._annotations[np.asarray(values[0], dtype=np.int64)]
        else:
            found, *others = map(self._numbers, values, self.columns)
            for less in others:
                found -= less
        absent = np.flatnonzero(~np.isfinite(found))
        if len(absent):
            if self.settings.missing is None:
                raise ColumnValueError(
                    f"the score {self.settings.name!r} is null or not finite in {len(absent):,} of {len(found):,} rows "
                    "of a batch: set `missing` of that scorer to the score of such rows",
                    int(absent[0]),
                )
            found[absent] = self.settings.missing
        return found

    def _numbers(self, values: Sequence[object], column: str) -> NDArray[np.float32]:
        """Return values of a column as numbers, (n,), NaN for null."""
        for position, value in enumerate(values):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float | Decimal)):
                raise ColumnValueError(
                    f"the column {column!r} must hold numbers, its value is {value!r:.80}: "
                    f"set the column of the scorer {self.settings.name!r} to a numeric one",
                    position,
                )
        numbers = np.array([np.nan if value is None else float(value) for value in values], dtype=np.float64)  # type: ignore[arg-type]
        with np.errstate(over="ignore", invalid="ignore"):
            return numbers.astype(np.float32)
