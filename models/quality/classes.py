"""Label texts with a transformers classifier that has several outputs, such as one of topics or of page types."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fineweb_mask.models.errors import ModelError
from fineweb_mask.models.quality.classifier import Classifier
from fineweb_mask.models.settings.quality import ClassesScorerSettings


class ClassesScorer(Classifier):
    """Return a classifier's outputs for each text; `labels` names them, in their order.

    Raises
    ------
    ModelError
        If the folder holds no classifier with several outputs of different names, or no fast tokenizer.
    SettingsError
        If `max_tokens` is more than the model reads.
    """

    def __init__(self, settings: ClassesScorerSettings, model_path: str, **how: Any) -> None:  # noqa: ANN401
        super().__init__(settings, model_path, **how)
        self.labels = [str(self._model.config.id2label[place]) for place in range(self.outputs)]
        if len(set(self.labels)) < 2:
            raise ModelError(f"the model {model_path!r} has the labels {self.labels}, the kind `classes` needs several")

    def score(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the model's outputs for each text, (n, labels)."""
        return self.logits(self.tokenise(texts))

    def label(self, logits: NDArray[np.float32]) -> list[str]:
        """Return the label of the largest of each row of outputs, (n, labels): n labels."""
        return [self.labels[place] for place in logits.argmax(axis=1)]
