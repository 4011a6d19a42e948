"""Settings of the section `embedding`."""

from typing import Literal

from pydantic import Field

from fineweb_mask.models.settings.base import Settings

STATIC = "static"
"""The `embedding.model` that is built in and fitted on the corpus."""

FROM_QUALITY = "from_quality"
"""The `embedding.model` that takes the vectors from the quality scorer of kind `edu`."""


class EmbeddingSettings(Settings):
    """Which encoder turns a document into a vector."""

    model: str = Field(
        STATIC,
        min_length=1,
        description="`static` (built in, fitted on this corpus), `from_quality` (the encoder of the scorer of kind "
        "edu, in the same forward pass as its score), a sentence-transformers folder, or a hub name.",
    )
    prompt: str | None = Field(
        None,
        description='Text put before every document, such as E5\'s "passage: "; null takes the one that the model '
        "itself has for documents, if any.",
    )
    max_tokens: int | None = Field(
        None, ge=1, description="Tokens read per document, special ones included; null reads what the model allows."
    )
    long_documents: Literal["truncate", "mean_chunks"] = Field(
        "truncate",
        description="Of a document with more tokens, `truncate` embeds the first `max_tokens`; `mean_chunks` embeds "
        "all of it in windows of that length and takes their mean, weighted by their tokens.",
    )
    precision: Literal["float16", "float32", "int8"] = Field(
        "float16", description="Type in which vectors are stored; int8 has one scale per document."
    )
    compute_precision: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description="Type in which a transformer computes; `auto` is bfloat16 on a GPU or CPU that has instructions "
        "for it, else float32.",
    )
    on_bad_vector: Literal["raise", "drop"] = Field(
        "drop", description="A zero or non-finite vector ends the run, or drops its document (counted)."
    )
    batch_tokens: int | None = Field(
        None,
        ge=1,
        description="Tokens per forward pass, padding included; null: 65,536 on a GPU, 2,048 on a CPU. Halved where "
        "the GPU runs out of memory.",
    )
    chunk_documents: int = Field(
        8_192,
        ge=1,
        description="Documents tokenised and sorted by length together; a killed run goes on after the last chunk.",
    )
    device: str = Field("auto", description="`auto` (a GPU where there is one), `cpu`, `cuda` or `cuda:N`.")
    static_vocabulary: int = Field(32_000, ge=300, description="Built-in encoder: tokens in its vocabulary.")
    static_dimensions: int = Field(768, ge=2, description="Built-in encoder: dimensions of its vectors.")
    static_fit_documents: int = Field(20_000, ge=1, description="Built-in encoder: documents it is fitted on.")
