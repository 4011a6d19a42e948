"""Take the score from annotations that others have made of the rows of a source file."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fineweb_mask.models.quality.column import ColumnValueError
from fineweb_mask.models.settings.quality import SidecarScorerSettings


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

    column = "source_row"
    reads_arrow = False

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
        absent = ~np.isfinite(scores)
        if absent.any():
            if self.settings.missing is None:
                position = int(np.flatnonzero(absent)[0])
                raise ColumnValueError(
                    f"the annotation of row {rows[position]:,} of the source file is null or not finite: set `missing` "
                    f"of the scorer {self.settings.name!r} to the score of such rows",
                    position,
                )
            scores[absent] = self.settings.missing
        return scores
