"""Load a transformers model and its tokenizer for a scorer, from safetensors only."""

import threading
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from fineweb_mask.models.errors import ModelError, SettingsError
from fineweb_mask.models.forward.batches import TokenBudget
from fineweb_mask.models.forward.device import choose_device
from fineweb_mask.models.settings.quality import TransformerSettings

BATCH_TOKENS = 16_384
"""Tokens per forward pass, padding included; halved if the device runs out of memory."""


class TransformerScorer:
    """A model and its tokenizer, from the folder `model_path`; code of the model is not run.

    Parameters
    ----------
    settings
        The scorer's.
    model_path
        The folder.
    kind
        One of transformers' classes, which loads the model.
    name
        What errors call it.
    device
        `auto` (a GPU if there is one, else the CPU), `cpu`, `cuda` or `cuda:N`.
    batch_tokens
        Tokens per forward pass.
    usual_tokens
        Tokens read per document where the settings do not say; None: as many as the model reads.

    Raises
    ------
    ModelError
        If the folder holds no such model, or no fast tokenizer.
    SettingsError
        If `max_tokens` is more than the model reads.
    """

    column = "text"
    reads_arrow = False

    def __init__(
        self,
        settings: TransformerSettings,
        model_path: str,
        kind: Any,  # noqa: ANN401 - transformers' own
        name: str,
        device: str = "auto",
        batch_tokens: int = BATCH_TOKENS,
        usual_tokens: int | None = None,
    ) -> None:
        self.device = choose_device(device)
        self._budget = TokenBudget(batch_tokens)
        self._lock = threading.Lock()  # held during a forward pass
        precision = torch.bfloat16 if self.device.startswith("cuda") else torch.float32
        loaded = _load_model(model_path, precision, kind, name)
        self._model = loaded.to(self.device).eval()
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
        self.max_tokens = settings.max_tokens or min(allowed, usual_tokens or allowed)


def _load_model(folder: str, precision: torch.dtype, kind: Any, name: str) -> Any:  # noqa: ANN401 - transformers' own
    """Load a model by one of transformers' classes, from safetensors only; `name` is what errors call it.

    Raises
    ------
    ModelError
        If the folder holds no such model, or lacks weights of it.
    """
    if not any(Path(folder).glob("*.safetensors")):
        raise ModelError(
            f"the model {folder!r} has no safetensors, and other weights are never loaded: save it as safetensors"
        )
    try:
        model, loading = kind.from_pretrained(
            folder,
            dtype=precision,
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"cannot load {folder!r} as a {name}: {error}") from error
    if missing := sorted(loading["missing_keys"]):
        raise ModelError(f"the model {folder!r} has no weights for {missing[0]!r}: it must be a trained {name}")
    return model


def _load_tokenizer(folder: str) -> PreTrainedTokenizerFast:
    """Load the fast tokenizer of a model.

    Raises
    ------
    ModelError
        If the folder has none.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"cannot load the tokenizer of {folder!r}: {error}") from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ModelError(f"the model {folder!r} has no tokenizer.json: save its fast tokenizer in that folder")
    return tokenizer
