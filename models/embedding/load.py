"""Load a sentence-transformers model as an encoder, with its pooling, prompts, truncation and normalisation."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.functional import embedding_bag

from fineweb_mask.models.embedding.static import StaticModel
from fineweb_mask.models.errors import ModelError
from fineweb_mask.models.forward.device import choose_device
from fineweb_mask.models.forward.encoder import Encoded, Encoder, encoded
from fineweb_mask.models.forward.tokens import TokenIds, all_tokens, first_tokens, read_as_text, without_cache
from fineweb_mask.models.settings import EmbeddingSettings

if TYPE_CHECKING:  # takes seconds to import, and the built-in encoder does without
    from sentence_transformers import SentenceTransformer


class TokenVectorEncoder(Encoder):
    """Take the mean of one vector per token, of `weights` (vocabulary, dimensions), as the built-in encoder does.

    It computes in float32 on the CPU, because most of the work is tokenising.
    """

    device = "cpu"

    def __init__(self, tokenizer: Tokenizer, weights: Tensor, settings: EmbeddingSettings, prompt: str) -> None:
        self.dimensions, self._weights, self._tokenizer = weights.shape[1], weights, tokenizer
        read_as_text(self._tokenizer)
        without_cache(self._tokenizer)
        truncation = self._tokenizer.truncation
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        model_limit = truncation["max_length"] if truncation else None
        self._max_tokens = model_limit if settings.max_tokens is None else settings.max_tokens
        self._prompt = prompt

    def tokenise(self, texts: Sequence[str]) -> TokenIds:
        """Return the token ids that the model reads of each text."""
        prompted = [self._prompt + text for text in texts] if self._prompt else texts
        if self._max_tokens is None:
            return all_tokens(self._tokenizer, prompted)
        return first_tokens(self._tokenizer, prompted, self._max_tokens, special_tokens=False)

    def encode_tokens(self, tokens: TokenIds) -> Callable[[], Encoded]:
        """Take the mean of each text's token vectors."""
        with torch.inference_mode():
            starts = torch.from_numpy(tokens.starts).int()
            vectors = embedding_bag(torch.from_numpy(tokens.ids), self._weights, starts, mode="mean")
            return encoded(vectors)


DOCUMENT_PROMPTS = ("document", "passage", "corpus")  # names used by SentenceTransformer.encode_document


def load_encoder(
    model: str,
    settings: EmbeddingSettings,
    device: str = "auto",
    *,
    compute: torch.dtype | None = None,
    batch_tokens: int | None = None,
) -> Encoder:
    """Load a model of one vector per token, or of a transformer of texts.

    Parameters
    ----------
    model
        Folder or hub name. Weights are read only from safetensors, and code of the model is not run.
    settings
        Prompt, and tokens per document.
    device
        `auto` (a GPU if there is one, else the CPU), `cpu`, `cuda` or `cuda:N`.
    compute, batch_tokens
        As for `TransformerEncoder`.

    Raises
    ------
    ModelError
        If the model cannot be loaded, or cannot do what the settings require.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from fineweb_mask.models.embedding.static_fit import fit_static_encoder
    >>> fitted = fit_static_encoder(lambda: ["piano sonata", "football goal"] * 9, vocabulary=300, dimensions=2)
    >>> with TemporaryDirectory() as folder:
    ...     fitted.save(Path(folder))
    ...     encoder = load_encoder(folder, EmbeddingSettings(), "cpu")
    >>> encoder.encode(["piano", "goal"]).vectors.shape
    (2, 2)
    """
    device = choose_device(device)
    try:
        if (static := StaticModel.load(model)) is not None:
            prompt = _prompt(settings, static.prompts, static.default_prompt)
            return TokenVectorEncoder(static.tokenizer, torch.from_numpy(static.weights), settings, prompt)
        loaded = _load_whole(model, device)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise ModelError(
            f"cannot load the embedding model {model!r}: {error}; without a network, download it first with "
            f"`hf download {model}` or set embedding.model to a local folder"
        ) from error
    from sentence_transformers.sentence_transformer.modules import Normalize, StaticEmbedding

    from fineweb_mask.models.embedding.transformer import TransformerEncoder

    prompt = _prompt(settings, loaded.prompts, loaded.default_prompt_name)
    if isinstance(loaded[0], StaticEmbedding) and all(isinstance(one, Normalize) for one in list(loaded)[1:]):
        weights = loaded[0].embedding.weight.detach()[:, : loaded.get_embedding_dimension()]
        return TokenVectorEncoder(loaded[0].tokenizer, weights.cpu().contiguous(), settings, prompt)
    return TransformerEncoder(loaded, settings, prompt, device, compute=compute, batch_tokens=batch_tokens)


def _load_whole(model: str, device: str) -> "SentenceTransformer":
    for pickle in Path(model).rglob("pytorch_model*.bin"):  # sentence-transformers falls back to these silently
        if not any(pickle.parent.glob("*.safetensors")):
            raise ModelError(
                f"the embedding model {model!r} has only pickled weights ({pickle.name}), which are never loaded: "
                "save it as safetensors"
            )
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(
        model, device=device, trust_remote_code=False, model_kwargs={"use_safetensors": True}
    ).eval()


def _prompt(settings: EmbeddingSettings, prompts: Mapping[str, str | None], default: str | None) -> str:
    """Return the prompt of the settings, else that of the model itself for documents, if it has one."""
    if settings.prompt is not None:
        return settings.prompt
    found = (prompts.get(name) for name in (*DOCUMENT_PROMPTS, default) if name is not None)
    return next(filter(None, found), "")
