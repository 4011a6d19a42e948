"""Score texts with a transformers classifier that has one regression output, such as FineWeb-Edu's.

FineWeb-Edu's classifier (https://arxiv.org/abs/2406.17557) is snowflake-arctic-embed-m with a head that was trained
while the encoder was frozen (`train_edu_bert.py` of https://github.com/huggingface/cosmopedia). The last hidden state
of its first token is therefore the embedding of that encoder, too, and one forward pass returns both.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fineweb_mask.models.errors import ModelError
from fineweb_mask.models.forward.tokens import TokenIds
from fineweb_mask.models.forward.vectors import Encoded, unit_vectors
from fineweb_mask.models.quality.classifier import Classifier
from fineweb_mask.models.settings.quality import EduScorerSettings

if TYPE_CHECKING:
    from torch import Tensor


class ScoredVectors(NamedTuple):
    """Scores and embeddings of n documents from one forward pass."""

    scores: NDArray[np.float32]  # (n,)
    encoded: Encoded  # vectors (n, d): last hidden state of the first token, scaled to norm 1


class EduScorer(Classifier):
    """Score a text with the output of a sequence-classification model, unchanged; FineWeb-Edu's is about 0 to 5.

    Raises
    ------
    ModelError
        If the folder holds no classifier with one output, or no fast tokenizer.
    SettingsError
        If `max_tokens` is more than the model reads.
    """

    def __init__(self, settings: EduScorerSettings, model_path: str, **how: Any) -> None:  # noqa: ANN401
        super().__init__(settings, model_path, **how)
        if self.outputs != 1:
            raise ModelError(f"the model {model_path!r} has {self.outputs} outputs, the kind `edu` needs exactly one")
        self.dimensions = int(self._model.config.hidden_size)  # of a vector
        self._first: Tensor | None = None
        self._model.base_model.register_forward_hook(self._keep_first_token)

    def score(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the model's output for each text, (n,)."""
        return self.score_and_embed(texts).scores

    def score_and_embed(self, texts: Sequence[str]) -> ScoredVectors:
        """Return the model's output and the embedding of each text from one forward pass."""
        return self.score_and_embed_tokens(self.tokenise(texts))

    def score_and_embed_tokens(self, tokens: TokenIds) -> ScoredVectors:
        """Return the model's output and the embedding of each tokenised text from one forward pass."""
        vectors = np.zeros((len(tokens.lengths), self.dimensions), dtype=np.float32)

        def keep(rows: NDArray[np.int64]) -> None:
            first, self._first = self._first, None
            assert first is not None  # noqa: S101 - the hook has run
            vectors[rows] = first.float().cpu().numpy()

        scores = self.logits(tokens, keep)[:, 0]
        return ScoredVectors(scores, unit_vectors(vectors))

    def _keep_first_token(self, _module: object, _arguments: object, output: Any) -> None:  # noqa: ANN401
        self._first = output.last_hidden_state[:, 0]
