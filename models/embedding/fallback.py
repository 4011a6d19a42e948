"""Encode texts with `SentenceTransformer.encode`, for models that the faster encoders do not support."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from fineweb_mask.models.embedding.encoder import Encoder, EncoderError
from fineweb_mask.models.forward.vectors import Encoded, unit_vectors
from fineweb_mask.models.settings import EmbeddingSettings

BATCH_SIZE = 32  # default of sentence-transformers


class WholeModelEncoder(Encoder[Sequence[str]]):
    """Pass the texts to `SentenceTransformer.encode`: for models without a fast tokenizer or with a router.

    They cannot cut windows: `long_documents: mean_chunks` raises EncoderError.
    """

    def __init__(self, model: SentenceTransformer, settings: EmbeddingSettings, prompt: str) -> None:
        if settings.long_documents == "mean_chunks":
            raise EncoderError(
                "embedding.long_documents: this model has no fast tokenizer and can only truncate: set `truncate`"
            )
        if settings.max_tokens is not None:
            model.max_seq_length = settings.max_tokens
        self.dimensions = int(model.get_embedding_dimension() or 0)
        self._model = model
        self._prompt = prompt
        self._stored = np.float16 if settings.precision == "float16" else np.float32

    def tokenise(self, texts: Sequence[str]) -> Sequence[str]:
        """Return the texts unchanged, because the model tokenises them itself."""
        return texts

    def encode_tokens(self, tokens: Sequence[str]) -> Callable[[], Encoded]:
        """Encode the texts at once; the returned function does not wait."""
        if not tokens:
            return lambda: Encoded(np.zeros((0, self.dimensions), dtype=self._stored), np.zeros(0, dtype=np.bool_))
        with torch.inference_mode():
            vectors = self._model.encode_document(
                list(tokens), prompt=self._prompt, batch_size=BATCH_SIZE, show_progress_bar=False
            )
        unit, bad = unit_vectors(np.asarray(vectors, dtype=np.float32))
        return lambda: Encoded(unit.astype(self._stored), bad)
