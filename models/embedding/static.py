"""Encode texts as the mean of one vector per token, as the built-in encoder does."""

from collections.abc import Callable, Sequence
from typing import cast

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding

from fineweb_mask.models.embedding.encoder import Encoder
from fineweb_mask.models.forward.tokens import TokenIds, all_tokens, first_tokens, without_cache
from fineweb_mask.models.forward.vectors import Encoded, unit_rows
from fineweb_mask.models.settings import EmbeddingSettings


class TokenVectorEncoder(Encoder[TokenIds]):
    """Run a sentence-transformers model with a `StaticEmbedding` as its first module, in float32.

    It runs on the CPU, because most of the work is tokenising.
    """

    on_cpu = True

    def __init__(self, model: SentenceTransformer, settings: EmbeddingSettings, prompt: str) -> None:
        self.dimensions = int(model.get_embedding_dimension() or 0)
        self._model = model
        self._tokenizer = cast("StaticEmbedding", model[0]).tokenizer
        without_cache(self._tokenizer)
        truncation = self._tokenizer.truncation
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        model_limit = truncation["max_length"] if truncation else None
        self._max_tokens = model_limit if settings.max_tokens is None else settings.max_tokens
        if settings.long_documents == "mean_chunks":
            self._max_tokens = None  # the mean of the windows is the mean of all tokens
        self._prompt = prompt
        self._stored = torch.float16 if settings.precision == "float16" else torch.float32

    @staticmethod
    def supports(model: SentenceTransformer) -> bool:
        """Return whether the model is of this kind."""
        return isinstance(model[0], StaticEmbedding)

    def tokenise(self, texts: Sequence[str]) -> TokenIds:
        """Return the token ids that the model reads of each text."""
        prompted = [self._prompt + text for text in texts] if self._prompt else texts
        if self._max_tokens is None:
            return all_tokens(self._tokenizer, prompted)
        return first_tokens(self._tokenizer, prompted, self._max_tokens, special_tokens=False)

    def encode_tokens(self, tokens: TokenIds) -> Callable[[], Encoded]:
        """Take the mean of each text's token vectors, and run the model's further modules."""
        if not len(tokens.lengths):
            return lambda: Encoded(torch.zeros((0, self.dimensions), dtype=self._stored).numpy(), tokens.lengths > 0)
        features = {"input_ids": torch.from_numpy(tokens.ids), "offsets": torch.from_numpy(tokens.starts).int()}
        with torch.inference_mode():
            vectors = self._model(features)["sentence_embedding"][:, : self.dimensions]
            unit, bad = unit_rows(vectors)
            return lambda: Encoded(unit.to(self._stored).numpy(), bad.numpy())
