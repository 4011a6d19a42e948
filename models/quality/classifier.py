"""Run a transformers classifier over texts, from safetensors only: the loop of the kinds `edu` and `classes`."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedTokenizerFast

from fineweb_mask.models.errors import ModelError, SettingsError
from fineweb_mask.models.forward.batches import PaddedTokens, TokenBudget, for_each_batch
from fineweb_mask.models.forward.device import choose_device
from fineweb_mask.models.forward.tokens import TokenIds, first_tokens
from fineweb_mask.models.settings.quality import TransformerSettings


class Classifier:
    """A sequence-classification model and its tokenizer.

    `model_path` is the folder of both. Weights are read only from safetensors, and code of the model is not run.

    Raises
    ------
    ModelError
        If the folder holds no classifier, or no fast tokenizer.
    SettingsError
        If `max_tokens` is more than the model reads.
    """

    column = "text"
    reads_arrow = False

    def __init__(self, settings: TransformerSettings, model_path: str) -> None:
        self.settings = settings
        self.device = choose_device(settings.device)
        self._budget = TokenBudget(settings.batch_tokens)
        self._lock = threading.Lock()  # held during a forward pass
        self._model = _load_model(model_path, _precision(settings, self.device)).to(self.device).eval()
        tokenizer = _load_tokenizer(model_path)
        self._tokenizer = tokenizer.backend_tokenizer
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._padding = tokenizer.pad_token_id or 0
        allowed = min(tokenizer.model_max_length, getattr(self._model.config, "max_position_embeddings", 512))
        if settings.max_tokens is not None and settings.max_tokens > allowed:
            raise SettingsError(
                f"scorer {settings.name!r}: its model reads {allowed} tokens, max_tokens is {settings.max_tokens}: "
                f"set it to at most {allowed}"
            )
        self.max_tokens = settings.max_tokens or allowed

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


def _precision(settings: TransformerSettings, device: str) -> torch.dtype:
    if settings.precision == "auto":
        return torch.bfloat16 if device.startswith("cuda") else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[settings.precision]


def _load_model(folder: str, precision: torch.dtype) -> Any:  # noqa: ANN401
    if not any(Path(folder).glob("*.safetensors")):
        raise ModelError(
            f"the model {folder!r} has no safetensors, and other weights are never loaded: save it as safetensors"
        )
    try:
        model, loading = AutoModelForSequenceClassification.from_pretrained(
            folder,
            dtype=precision,
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"cannot load {folder!r} as a sequence-classification model: {error}") from error
    if missing := sorted(loading["missing_keys"]):
        raise ModelError(f"the model {folder!r} has no weights for {missing[0]!r}: it must be a trained classifier")
    return model


def _load_tokenizer(folder: str) -> PreTrainedTokenizerFast:
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"cannot load the tokenizer of {folder!r}: {error}") from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ModelError(f"the model {folder!r} has no tokenizer.json: save its fast tokenizer in that folder")
    return tokenizer
