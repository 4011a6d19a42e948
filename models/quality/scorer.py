"""The scorers by kind, and the contract that they share."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from models.quality.fasttext import FastTextScorer
from models.quality.settings import FastTextScorerSettings


class Scorer(Protocol):
    """Scores documents one batch at a time."""

    def score(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return one score per text, (n,); higher is better."""


SCORERS = {"fasttext": FastTextScorer}


def load_scorer(settings: FastTextScorerSettings, model_path: str) -> Scorer:
    """Return the scorer that the settings name, reading its model from a local file."""
    return SCORERS[settings.kind](settings, model_path)
