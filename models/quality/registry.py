"""The scorers by kind, and the contract that they share."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fineweb_mask.models.quality.column import ColumnScorer
from fineweb_mask.models.quality.fasttext.scorer import FastTextScorer
from fineweb_mask.models.settings.quality import EduScorerSettings, ScorerSettings


class Scorer(Protocol):
    """Scores documents one batch at a time."""

    column: str
    """The column of the documents that it reads."""

    reads_arrow: bool
    """Whether `score` also takes the column as an Arrow array."""

    def score(self, values: Sequence[Any], /) -> NDArray[np.float32]:
        """Return one score per value of the column, (n,); higher is better."""


def _edu(settings: EduScorerSettings, model_path: str) -> Scorer:
    from fineweb_mask.models.quality.edu import EduScorer  # takes a second, which most runs need not spend

    return EduScorer(settings, model_path)


SCORERS: dict[str, Callable[[Any, str], Scorer]] = {
    "fasttext": FastTextScorer,
    "edu": _edu,
    "column": lambda settings, _: ColumnScorer(settings),
}


def load_scorer(settings: ScorerSettings, model_path: str) -> Scorer:
    """Return the scorer that the settings name, reading its model, if it has one, from a local file or folder."""
    return SCORERS[settings.kind](settings, model_path)
