"""A sentence-transformers model around a transformer, fed by our own loop.

The model's modules run as they are: transformer, pooling, dense layers. What differs from `SentenceTransformer.encode`
is what happens around them: of a long text only the start is tokenised, a whole chunk is sorted by its number of tokens
and cut into batches by a budget of tokens, batches are padded on the device, and results are gathered there.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Transformer
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from fineweb_mask.models.embedding.encoder import Encoder, EncoderError
from fineweb_mask.models.embedding.windows import WindowCutter, Windows, first_window
from fineweb_mask.models.forward.batches import PaddedTokens, TokenBudget, for_each_batch
from fineweb_mask.models.forward.device import compute_dtype
from fineweb_mask.models.forward.vectors import Encoded, unit_rows
from fineweb_mask.models.settings import EmbeddingSettings

BATCH_TOKENS = {"cpu": 2_048, "cuda": 65_536}
"""Tokens to a forward pass; on a CPU activations of more fall out of its caches."""


class TransformerEncoder(Encoder[Windows]):
    """Runs a sentence-transformers model whose first module is a transformer over text.

    Parameters
    ----------
    model
        The model, on its device. Changed in place to the type it is to compute in.
    settings
        Tokens per document, treatment of long documents, precisions, tokens per forward pass.
    prompt
        Text put before every document.
    device
        Where the model lies.

    Raises
    ------
    EncoderError
        If the settings ask for more than the model can read.
    """

    def __init__(self, model: SentenceTransformer, settings: EmbeddingSettings, prompt: str, device: str) -> None:
        transformer = cast("Transformer", model[0])
        tokenizer = cast("PreTrainedTokenizerFast", transformer.tokenizer)
        self._max_tokens = _tokens_read(transformer, settings.max_tokens)
        self._tokenizer = tokenizer.backend_tokenizer
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._padding = tokenizer.pad_token_id or 0
        self._prompt = prompt
        self._prompt_tokens = _prompt_tokens(tokenizer, prompt)
        self._cutter = None
        if settings.long_documents == "mean_chunks":
            try:
                self._cutter = WindowCutter(self._tokenizer, self._max_tokens, prompt)
            except ValueError as error:
                raise EncoderError(f"embedding.long_documents: {error}") from error
        self._device = device
        self._model, self._autocast = _in_precision(model, compute_dtype(settings.compute_precision, device), device)
        self._stored = torch.float16 if settings.precision == "float16" else torch.float32
        self.budget = TokenBudget(settings.batch_tokens or BATCH_TOKENS[torch.device(device).type])

    @staticmethod
    def runs(model: SentenceTransformer) -> bool:
        """Return whether this loop feeds the model as it wants to be fed."""
        first = model[0]
        return (
            isinstance(first, Transformer)
            and isinstance(first.tokenizer, PreTrainedTokenizerFast)
            and first.transformer_task == "feature-extraction"
            and list(first.modality_config) == ["text"]
            and first.modality_config["text"]["method"] == "forward"
        )

    @property
    def dimensions(self) -> int:
        """Length of a vector."""
        return int(self._model.get_embedding_dimension() or 0)

    def tokenise(self, texts: Sequence[str]) -> Windows:
        """Return the token ids that the model reads of each text."""
        if self._cutter is not None:
            return self._cutter.cut(texts)
        return first_window(self._tokenizer, [self._prompt + text for text in texts], self._max_tokens)

    def encode_tokens(self, tokens: Windows) -> Callable[[], Encoded]:
        """Run the model over the windows and average those of a document, weighted by their tokens."""
        count = int(tokens.documents[-1]) + 1 if len(tokens.documents) else 0
        with torch.inference_mode():
            sums = torch.zeros((count, self.dimensions), device=self._device)
            padded = PaddedTokens(tokens.tokens, self._padding, self._device)

            def forward(rows: NDArray[Any]) -> None:
                vectors = self._forward(padded.batch(rows))
                weights = torch.from_numpy(tokens.weights[rows]).to(self._device)
                documents = torch.from_numpy(tokens.documents[rows]).to(self._device)
                sums.index_add_(0, documents, vectors.float() * weights[:, None])

            for_each_batch(tokens.tokens.lengths, self.budget, forward)
            unit, bad = unit_rows(sums)
            return _fetched(unit.to(self._stored), bad)

    def _forward(self, features: dict[str, Tensor]) -> Tensor:
        with self._autocast():
            output: Tensor = self._model({**features, "prompt_length": self._prompt_tokens})["sentence_embedding"]
        return output[:, : self.dimensions]  # the leading ones, where the model is to be truncated to them


def _in_precision(
    model: SentenceTransformer, dtype: torch.dtype, device: str
) -> tuple[SentenceTransformer, Callable[[], AbstractContextManager[object]]]:
    """Return the model in a type, and the context that it runs in.

    A GPU computes all of it in that type. A CPU gains in the matrix products alone: there, the linear layers' weights
    are converted, and everything between them stays in float32.
    """
    on_cpu = torch.device(device).type == "cpu"
    model.to(torch.float32 if on_cpu else dtype)  # whatever type the weights were saved in
    if dtype == torch.float32 or not on_cpu:
        return model, nullcontext
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.to(dtype)
    return model, lambda: torch.autocast("cpu", dtype)


def _tokens_read(transformer: Transformer, wanted: int | None) -> int:
    """Return how many tokens the model reads of a text.

    Raises
    ------
    EncoderError
        If more are wanted than the model has positions for.
    """
    positions = _positions(transformer)
    if wanted is None:
        return min(transformer.document_length or transformer.max_seq_length or positions, positions)
    if wanted > positions:
        raise EncoderError(f"embedding.max_tokens: the model reads {positions} tokens, set it to no more than that")
    return wanted


def _positions(transformer: Transformer) -> int:
    """Return how many positions the model has learned, or says that it takes."""
    for module in transformer.model.modules():
        learned = getattr(module, "position_embeddings", None)
        if isinstance(learned, nn.Embedding):
            return learned.num_embeddings - (0 if learned.padding_idx is None else learned.padding_idx + 1)
    return int(getattr(transformer.config, "max_position_embeddings", 0)) or 512


def _prompt_tokens(tokenizer: PreTrainedTokenizerFast, prompt: str) -> int:
    """Return how many tokens come before the document itself: some models leave those out of the mean."""
    if not prompt:
        return 0
    ids = tokenizer(prompt)["input_ids"]
    return len(ids) - (ids[-1] in tokenizer.all_special_ids)


def _fetched(vectors: Tensor, bad: Tensor) -> Callable[[], Encoded]:
    """Copy results to the host beside what runs next; the function returned waits for them."""
    if vectors.device.type != "cuda":
        return lambda: Encoded(vectors.numpy(), bad.numpy())
    hosts = [
        torch.empty(one.shape, dtype=one.dtype, pin_memory=True).copy_(one, non_blocking=True) for one in (vectors, bad)
    ]
    copied: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
    copied.record()

    def wait() -> Encoded:
        copied.synchronize()
        return Encoded(hosts[0].numpy(), hosts[1].numpy())

    return wait
