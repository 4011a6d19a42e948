"""Run a transformers classifier over texts, from safetensors only: the loop of the kinds `edu` and `classes`."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForSequenceClassification

from fineweb_mask.models.forward.batches import PaddedTokens, for_each_batch
from fineweb_mask.models.forward.tokens import TokenIds, first_tokens
from fineweb_mask.models.quality.transformer import TransformerScorer
from fineweb_mask.models.settings.quality import TransformerSettings


class Classifier(TransformerScorer):
    """A sequence-classification model and its tokenizer.

    `model_path` is the folder of both. Weights are read only from safetensors, and code of the model is not run. `how`
    are `device` and `batch_tokens` of `TransformerScorer`.

    Raises
    ------
    ModelError
        If the folder holds no classifier, or no fast tokenizer.
    SettingsError
        If `max_tokens` is more than the model reads.
    """

    def __init__(self, settings: TransformerSettings, model_path: str, **how: Any) -> None:  # noqa: ANN401
        self.settings = settings
        super().__init__(settings, model_path, AutoModelForSequenceClassification, "classifier", **how)

    @property
    def outputs(self) -> int:
        """How many numbers the model returns for a text."""
        return int(self._model.config.num_labels)

    def tokenise(self, texts: Sequence[str]) -> TokenIds:
        """Return the token ids that the model reads of each text; may be called from any thread."""
        return first_tokens(self._tokenizer, texts, self.max_tokens)

    def logits(
        self, tokens: TokenIds, after: Callable[[NDArray[np.int64]], None] = lambda _: None
    ) -> NDArray[np.float32]:
        """Return the model's outputs for n tokenised texts, (n, outputs); `after` is called with each batch's rows."""
        found = np.zeros((len(tokens.lengths), self.outputs), dtype=np.float32)
        with self._lock, torch.inference_mode():
            padded = PaddedTokens(tokens, self._padding, self.device)

            def forward(rows: NDArray[np.int64]) -> None:
                found[rows] = self._model(**padded.batch(rows)).logits.float().cpu().numpy()
                after(rows)

            for_each_batch(tokens.lengths, self._budget, forward)
        return found
