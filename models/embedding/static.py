"""A sentence-transformers model that looks up one vector per token and takes their mean, as the built-in encoder."""

from collections.abc import Callable, Sequence
from typing import cast

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding

from fineweb_mask.models.embedding.encoder import Encoder
from fineweb_mask.models.forward.tokens import TokenIds, all_tokens, first_tokens
from fineweb_mask.models.forward.vectors import Encoded, unit_rows
from fineweb_mask.models.settings import EmbeddingSettings


class TokenVectorEncoder(Encoder[TokenIds]):
    """Runs a model whose first module is a `StaticEmbedding`, in float32 on the CPU: tokenising is most of the work.

    Parameters
    ----------
    model
        The model, on the CPU.
    settings
        Tokens per document and the precision in which vectors are stored.
    prompt
        Text put before every document.
    """

    on_cpu = True

    def __init__(self, model: SentenceTransformer, settings: EmbeddingSettings, prompt: str) -> None:
        self._model = model
        self._tokenizer = cast("StaticEmbedding", model[0]).tokenizer
        truncation = self._tokenizer.truncation
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        own = truncation["max_length"] if truncation else None
        self._max_tokens = own if settings.max_tokens is None else settings.max_tokens
        if settings.long_documents == "mean_chunks":
            self._max_tokens = None  # the mean of the windows is the mean of all tokens
        self._prompt = prompt
        self._stored = torch.float16 if settings.precision == "float16" else torch.float32

    @staticmethod
    def runs(model: SentenceTransformer) -> bool:
        """Return whether the model is of this kind."""
        return isinstance(model[0], StaticEmbedding)

    @property
    def dimensions(self) -> int:
        """Length of a vector."""
        return int(self._model.get_embedding_dimension() or 0)

    def tokenise(self, texts: Sequence[str]) -> TokenIds:
        """Return the token ids that the model reads of each text."""
        prompted = [self._prompt + text for text in texts] if self._prompt else texts
        if self._max_tokens is None:
            return all_tokens(self._tokenizer, prompted)
        return first_tokens(self._tokenizer, prompted, self._max_tokens, special_tokens=False)

    def encode_tokens(self, tokens: TokenIds) -> Callable[[], Encoded]:
        """Take the mean of each text's token vectors, and run what the model has after it."""
        if not len(tokens.lengths):
            return lambda: Encoded(torch.zeros((0, self.dimensions), dtype=self._stored).numpy(), tokens.lengths > 0)
        features = {"input_ids": torch.from_numpy(tokens.ids), "offsets": torch.from_numpy(tokens.starts).int()}
        with torch.inference_mode():
            vectors = self._model(features)["sentence_embedding"][:, : self.dimensions]
            unit, bad = unit_rows(vectors)
            return lambda: Encoded(unit.to(self._stored).numpy(), bad.numpy())
