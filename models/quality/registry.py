"""Load a scorer by its kind, and define what every scorer provides."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fineweb_mask.models.quality.column import NumberScorer
from fineweb_mask.models.quality.fasttext import FastTextScorer
from fineweb_mask.models.settings.quality import ScorerSettings


class Scorer(Protocol):
    """Score documents one batch at a time.

    Examples
    --------
    A custom scorer:

    >>> class LengthScorer:
    ...     columns = ("text",)
    ...
    ...     def score(self, values):
    ...         return np.array([len(text) for text in values], dtype=np.float32)
    >>> scorer: Scorer = LengthScorer()
    >>> scorer.score(["a text", ""])
    array([6., 0.], dtype=float32)
    """

    columns: tuple[str, ...]
    """Names of the columns whose values `score` takes, one argument each."""

    def score(self, values: Sequence[Any], /) -> NDArray[np.float32]:
        """Return one score per value of the column, (n,); higher is better."""


def _transformer(name: str, settings: Any, model_path: str) -> Scorer:  # noqa: ANN401 - of the scorer's kind
    """Load a scorer by the name of its class in `transformer.py`."""
    from fineweb_mask.models.quality import transformer  # takes a second, and most runs do not need it

    scorer: Scorer = getattr(transformer, name)(settings, model_path)
    return scorer


SCORERS: dict[str, Callable[[Any, str], Scorer]] = {
    "fasttext": FastTextScorer,
    "edu": partial(_transformer, "EduScorer"),
    "column": lambda settings, _: NumberScorer(settings),
    "perplexity": partial(_transformer, "PerplexityScorer"),
}
"""The class of each kind; one of kind `sidecar` is made for each shard (`tasks/inference/scorers.py`)."""


def load_scorer(settings: ScorerSettings, model_path: str) -> Scorer:
    """Return the scorer that the settings name; `model_path` is the local file or folder of its model, if it has one.

    Examples
    --------
    >>> from fineweb_mask.models.settings.quality import ColumnScorerSettings
    >>> load_scorer(ColumnScorerSettings(column="language_score"), "").score([0.9])
    array([0.9], dtype=float32)
    """
    return SCORERS[settings.kind](settings, model_path)
