"""Score texts with a transformer, from safetensors only: the kinds `edu` and `perplexity`.

FineWeb-Edu's classifier (https://arxiv.org/abs/2406.17557) is snowflake-arctic-embed-m with a head that was trained
while the encoder was frozen (`train_edu_bert.py` of https://github.com/huggingface/cosmopedia). The last hidden state
of its first token is therefore the embedding of that encoder, too, and one forward pass returns both.

`perplexity` scores by how likely a causal language model finds a text, as CCNet does (Wenzek et al. 2019, arXiv
1911.00359).
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedTokenizerFast,
)

from fineweb_mask.models.errors import ModelError, SettingsError
from fineweb_mask.models.forward.batches import ForwardPasses
from fineweb_mask.models.forward.device import choose_device
from fineweb_mask.models.forward.encoder import Encoded, Encoder, encoded
from fineweb_mask.models.forward.tokens import TokenIds
from fineweb_mask.models.settings.quality import EduScorerSettings, TransformerSettings

BATCH_TOKENS = 16_384
"""Tokens per forward pass, padding included; halved if the device runs out of memory."""


class TransformerScorer(ForwardPasses):
    """A model and its tokenizer, from the folder `model_path`: safetensors only, and code of the model is not run.

    Parameters
    ----------
    settings
        The scorer's.
    model_path
        The folder.
    device
        `auto` (a GPU if there is one, else the CPU), `cpu`, `cuda` or `cuda:N`.
    batch_tokens
        Tokens per forward pass; None: those of the kind.

    Raises
    ------
    ModelError
        If the folder holds no such model, lacks weights of it, or has no fast tokenizer.
    SettingsError
        If `max_tokens` is more than the model reads.
    """

    columns: tuple[str, ...] = ("text",)
    loader: ClassVar[Any]  # one of transformers' classes, which loads the model
    called: ClassVar[str]  # what errors call the model
    batch_tokens = BATCH_TOKENS
    usual_tokens: int | None = None
    """Tokens read per document where the settings do not say; None: as many as the model reads."""

    def __init__(
        self, settings: TransformerSettings, model_path: str, device: str = "auto", batch_tokens: int | None = None
    ) -> None:
        self.settings, device = settings, choose_device(device)
        self._model = self._load_model(model_path, device).to(device).eval()
        tokenizer = _load_tokenizer(model_path)
        allowed = min(tokenizer.model_max_length, getattr(self._model.config, "max_position_embeddings", 512))
        if settings.max_tokens is not None and settings.max_tokens > allowed:
            raise SettingsError(
                f"scorer {settings.name!r}: its model reads {allowed} tokens, max_tokens is {settings.max_tokens}: "
                f"set it to at most {allowed}"
            )
        super().__init__(
            tokenizer,
            max_tokens=settings.max_tokens or min(allowed, self.usual_tokens or allowed),
            batch_tokens=batch_tokens or self.batch_tokens,
            device=device,
        )

    def _load_model(self, folder: str, device: str) -> Any:  # noqa: ANN401 - transformers' own
        if not any(Path(folder).glob("*.safetensors")):
            raise ModelError(
                f"the model {folder!r} has no safetensors, and other weights are never loaded: save it as safetensors"
            )
        try:
            model, loading = self.loader.from_pretrained(
                folder,
                dtype=torch.bfloat16 if device.startswith("cuda") else torch.float32,
                use_safetensors=True,
                trust_remote_code=False,
                local_files_only=True,
                output_loading_info=True,
            )
        except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
            raise ModelError(f"cannot load {folder!r} as a {self.called}: {error}") from error
        if missing := sorted(loading["missing_keys"]):
            raise ModelError(
                f"the model {folder!r} has no weights for {missing[0]!r}: it must be a trained {self.called}"
            )
        return model


def _load_tokenizer(folder: str) -> PreTrainedTokenizerFast:
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"cannot load the tokenizer of {folder!r}: {error}") from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ModelError(f"the model {folder!r} has no tokenizer.json: save its fast tokenizer in that folder")
    return tokenizer


class EduScorer(TransformerScorer, Encoder):
    """Score a text with the output of a sequence-classification model, unchanged; FineWeb-Edu's is about 0 to 5.

    As an encoder, it takes the last hidden state of a text's first token. A model of several outputs raises ModelError.
    """

    loader = AutoModelForSequenceClassification
    called = "classifier"

    def __init__(
        self, settings: EduScorerSettings, model_path: str, device: str = "auto", batch_tokens: int | None = None
    ) -> None:
        super().__init__(settings, model_path, device, batch_tokens)
        if (outputs := self._model.config.num_labels) != 1:
            raise ModelError(f"the model {model_path!r} has {outputs} outputs, the kind `edu` needs exactly one")
        self.dimensions = int(self._model.config.hidden_size)
        self._hidden: Tensor | None = None  # of the batch that is computed: (b, tokens, d)
        self._model.base_model.register_forward_hook(self._keep_hidden)

    def score(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the model's output for each text, (n,)."""
        return self.score_and_encode(self.tokenise(texts))[0]

    def encode_tokens(self, tokens: TokenIds) -> Callable[[], Encoded]:
        """Run the model on the tokens of each text."""
        return self.score_and_encode(tokens)[1]

    def score_and_encode(self, tokens: TokenIds) -> tuple[NDArray[np.float32], Callable[[], Encoded]]:
        """Return the model's output for each text, (n,), and what `encode_tokens` does, from one forward pass."""

        def forward(batch: dict[str, Tensor], _: NDArray[np.int64]) -> Tensor:
            outputs = self._model(**batch).logits.float()
            hidden, self._hidden = self._hidden, None
            assert hidden is not None  # noqa: S101 - the hook has run
            return torch.cat([outputs, hidden[:, 0].float()], dim=1)

        made = self.run(tokens, 1 + self.dimensions, forward)
        return made[:, 0].cpu().numpy(), encoded(made[:, 1:])

    def _keep_hidden(self, _module: object, _arguments: object, output: Any) -> None:  # noqa: ANN401
        self._hidden = output.last_hidden_state


class PerplexityScorer(TransformerScorer):
    """Score a text with minus the mean loss of its tokens, in nats.

    The first token is read, and not predicted. A text of fewer than two tokens gets the loss of a uniform guess, the
    log of the vocabulary's size.
    """

    loader = AutoModelForCausalLM
    called = "causal language model"
    batch_tokens = 4_096  # each token takes memory for the whole vocabulary
    usual_tokens = 512

    def score(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the score of each text, (n,); likelier texts have higher ones."""
        uniform = float(-np.log(self._model.config.vocab_size))

        def forward(batch: dict[str, Tensor], lengths: NDArray[np.int64]) -> Tensor:
            logits, found = self._model(**batch).logits, torch.full((len(lengths), 1), uniform, device=self.device)
            for row, predicted in enumerate((lengths - 1).tolist()):
                if predicted > 0:
                    ids = batch["input_ids"][row, 1 : predicted + 1]
                    found[row] = -cross_entropy(logits[row, :predicted].float(), ids)
            return found

        return self.run(self.tokenise(texts), 1, forward)[:, 0].cpu().numpy()
