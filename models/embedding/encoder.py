"""Any sentence-transformers model as an encoder: unit vectors, row by row, bad ones reported."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding

from models.device import choose_device
from models.embedding.unit import Encoded, unit_vectors
from models.settings import EmbeddingSettings


class EncoderError(RuntimeError):
    """The encoder's model cannot be loaded or used."""


class Encoder:
    """Turns texts into unit vectors with a sentence-transformers model.

    Parameters
    ----------
    model
        Folder or hub name of the model. Weights are read from safetensors only, and no code of the model is run.
    settings
        Prompt, tokens per document, batch size and device.

    Raises
    ------
    EncoderError
        If the model cannot be loaded.
    """

    def __init__(self, model: str, settings: EmbeddingSettings) -> None:
        self.settings = settings
        for pickle in Path(model).rglob("pytorch_model*.bin"):  # sentence-transformers falls back to it in silence
            if not any(pickle.parent.glob("*.safetensors")):
                raise EncoderError(
                    f"the embedding model {model!r} has only pickled weights ({pickle.name}), which are never loaded: "
                    "save it as safetensors"
                )
        try:
            self._model = SentenceTransformer(
                model,
                device=choose_device(settings.device),
                trust_remote_code=False,
                model_kwargs={"use_safetensors": True},
            )
        except (OSError, ValueError) as error:
            raise EncoderError(
                f"cannot load the embedding model {model!r}: {error}; without a network, download it first with "
                f"`hf download {model}` or set embedding.model to a local folder"
            ) from error
        if settings.max_tokens is not None:
            self._limit_tokens(settings.max_tokens)

    def _limit_tokens(self, max_tokens: int) -> None:
        first = self._model[0]
        if isinstance(first, StaticEmbedding):
            first.tokenizer.enable_truncation(max_tokens)
        else:
            self._model.max_seq_length = max_tokens

    @property
    def dimensions(self) -> int:
        """Length of a vector."""
        return int(self._model.get_embedding_dimension() or 0)

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Return the vectors of the texts."""
        vectors = self._model.encode(
            list(texts),
            prompt=self.settings.prompt or None,
            batch_size=self.settings.batch_size,
            show_progress_bar=False,
            convert_to_numpy=True,
        ).astype(np.float32, copy=False)
        return unit_vectors(vectors)
