"""Load any sentence-transformers model as an encoder, with its pooling, prompts, truncation and normalisation."""

from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from sentence_transformers import SentenceTransformer

from fineweb_mask.models.embedding.encoder import Encoder, EncoderError
from fineweb_mask.models.embedding.fallback import WholeModelEncoder
from fineweb_mask.models.embedding.static import TokenVectorEncoder
from fineweb_mask.models.embedding.transformer import TransformerEncoder
from fineweb_mask.models.forward.device import ComputePrecision, choose_device
from fineweb_mask.models.settings import EmbeddingSettings

DOCUMENT_PROMPTS = ("document", "passage", "corpus")  # names used by SentenceTransformer.encode_document


def load_encoder(
    model: str,
    settings: EmbeddingSettings,
    device: str = "auto",
    *,
    compute: ComputePrecision = "auto",
    batch_tokens: int | None = None,
) -> Encoder[Any]:
    """Load a model with the fastest encoder that supports it.

    Parameters
    ----------
    model
        Folder or hub name. Weights are read only from safetensors, and code of the model is not run.
    settings
        Prompt, tokens per document and precision.
    device
        `auto` (a GPU if there is one, else the CPU), `cpu`, `cuda` or `cuda:N`.
    compute, batch_tokens
        As for `TransformerEncoder`.

    Raises
    ------
    EncoderError
        If the model cannot be loaded, or cannot do what the settings require.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from fineweb_mask.models.embedding.static_fit import fit_static_encoder
    >>> fitted = fit_static_encoder(lambda: ["piano sonata", "football goal"] * 9, vocabulary=300, dimensions=2)
    >>> with TemporaryDirectory() as folder:
    ...     fitted.as_sentence_transformer().save(folder)
    ...     encoder = load_encoder(folder, EmbeddingSettings(), "cpu")
    >>> encoder.encode(["piano", "goal"]).vectors.shape
    (2, 2)
    """
    device = choose_device(device)
    for pickle in Path(model).rglob("pytorch_model*.bin"):  # sentence-transformers falls back to these silently
        if not any(pickle.parent.glob("*.safetensors")):
            raise EncoderError(
                f"the embedding model {model!r} has only pickled weights ({pickle.name}), which are never loaded: "
                "save it as safetensors"
            )
    try:
        loaded = SentenceTransformer(
            model, device=device, trust_remote_code=False, model_kwargs={"use_safetensors": True}
        ).eval()
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise EncoderError(
            f"cannot load the embedding model {model!r}: {error}; without a network, download it first with "
            f"`hf download {model}` or set embedding.model to a local folder"
        ) from error
    prompt = _document_prompt(loaded) if settings.prompt is None else settings.prompt
    if TokenVectorEncoder.supports(loaded):
        return TokenVectorEncoder(loaded.to("cpu"), settings, prompt)
    if TransformerEncoder.supports(loaded):
        return TransformerEncoder(loaded, settings, prompt, device, compute=compute, batch_tokens=batch_tokens)
    return WholeModelEncoder(loaded, settings, prompt)


def _document_prompt(model: SentenceTransformer) -> str:
    """Return the prompt that the model itself defines for documents, or an empty string."""
    prompts = model.prompts
    named = next((prompts[name] for name in DOCUMENT_PROMPTS if prompts.get(name)), None)
    if named is not None or model.default_prompt_name is None:
        return named or ""
    return prompts.get(model.default_prompt_name) or ""
