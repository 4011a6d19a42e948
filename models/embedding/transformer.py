"""Encode texts with a transformer of sentence-transformers, faster than `SentenceTransformer.encode`.

The model's modules (transformer, pooling, dense layers) run unchanged; the loop around them differs. Only the start of
a long text is tokenised. A whole chunk of texts is sorted by number of tokens and cut into batches by a budget of
tokens. Batches are padded on the device, and results are collected there.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Transformer
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from fineweb_mask.models.errors import ModelError
from fineweb_mask.models.forward.batches import ForwardPasses
from fineweb_mask.models.forward.device import fast_dtype
from fineweb_mask.models.forward.encoder import Encoded, Encoder, encoded
from fineweb_mask.models.forward.tokens import TokenIds
from fineweb_mask.models.settings import EmbeddingSettings

BATCH_TOKENS = {"cpu": 2_048, "cuda": 65_536}
"""Tokens per forward pass, padding included; on a CPU, the activations of more tokens do not fit into the caches."""


class TransformerEncoder(ForwardPasses, Encoder):
    """Run a sentence-transformers model with a text transformer as its first module.

    The model is on `device`, and is converted in place to the type that it computes in. Another model, or more tokens
    than it reads, raise ModelError.

    Parameters
    ----------
    model, settings, prompt, device
        What to run, and where.
    compute
        Type that the model computes in; None: bfloat16 on a GPU or CPU with instructions for it, else float32. A GPU
        computes everything in it. On a CPU only matrix products become faster, so only the weights of linear layers are
        converted and the rest stays in float32.
    batch_tokens
        Tokens per forward pass; None: what suits the device. Halved if the device runs out of memory.
    """

    def __init__(
        self,
        model: SentenceTransformer,
        settings: EmbeddingSettings,
        prompt: str,
        device: str,
        *,
        compute: torch.dtype | None = None,
        batch_tokens: int | None = None,
    ) -> None:
        transformer = model[0]
        if (
            not isinstance(transformer, Transformer)
            or not isinstance(tokenizer := transformer.tokenizer, PreTrainedTokenizerFast)
            or transformer.transformer_task != "feature-extraction"
            or transformer.modality_config.keys() != {"text"}
            or transformer.modality_config["text"]["method"] != "forward"
        ):
            raise ModelError(
                "the embedding model must begin with a transformer of texts alone that has a fast tokenizer: name "
                "another, or save its part for documents as a sentence-transformers model"
            )
        self.dimensions = int(model.get_embedding_dimension() or 0)
        super().__init__(
            tokenizer,
            max_tokens=_tokens_read(transformer, settings.max_tokens),
            batch_tokens=batch_tokens or BATCH_TOKENS[torch.device(device).type],
            device=device,
        )
        self._prompt, self._prompt_tokens = prompt, _prompt_tokens(tokenizer, prompt)
        self._model = model
        self._autocast: torch.autocast | nullcontext[None] = nullcontext()
        dtype = compute or fast_dtype(device)
        on_cpu = torch.device(device).type == "cpu"
        model.to(torch.float32 if on_cpu else dtype)  # weights may be saved in another type
        if on_cpu and dtype != torch.float32:
            for module in model.modules():
                if isinstance(module, nn.Linear):
                    module.to(dtype)
            self._autocast = torch.autocast("cpu", dtype)

    def tokenise(self, texts: Sequence[str]) -> TokenIds:
        """Return the token ids that the model reads of each text."""
        return super().tokenise([self._prompt + text for text in texts])

    def encode_tokens(self, tokens: TokenIds) -> Callable[[], Encoded]:
        """Run the model on the tokens of each text."""

        def forward(batch: dict[str, Tensor], _: NDArray[np.int64]) -> Tensor:
            with self._autocast:
                output: Tensor = self._model({**batch, "prompt_length": self._prompt_tokens})["sentence_embedding"]
            return output[:, : self.dimensions]  # the model computes more if it has a `truncate_dim`

        return encoded(self.run(tokens, self.dimensions, forward))


def _tokens_read(transformer: Transformer, wanted: int | None) -> int:
    """Return the number of tokens to read of a text, or raise ModelError if the model reads less than `wanted`.

    It reads as many as its position embedding has positions, else its configuration, else 512.
    """
    positions = int(getattr(transformer.config, "max_position_embeddings", 0)) or 512
    tables = (getattr(module, "position_embeddings", None) for module in transformer.model.modules())
    if table := next((table for table in tables if isinstance(table, nn.Embedding)), None):
        positions = table.num_embeddings - (0 if table.padding_idx is None else table.padding_idx + 1)
    if wanted is None:
        return min(transformer.document_length or transformer.max_seq_length or positions, positions)
    if wanted > positions:
        raise ModelError(
            f"embedding.max_tokens: the model reads {positions} tokens, max_tokens is {wanted}: "
            f"set it to at most {positions}"
        )
    return wanted


def _prompt_tokens(tokenizer: PreTrainedTokenizerFast, prompt: str) -> int:
    """Return the number of tokens before the document itself, which some models leave out of the mean."""
    if not prompt:
        return 0
    ids = tokenizer(prompt)["input_ids"]
    return len(ids) - (ids[-1] in tokenizer.all_special_ids)
