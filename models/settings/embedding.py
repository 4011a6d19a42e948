"""Define the settings of the section `embedding`.

>>> EmbeddingSettings(model="intfloat/e5-small-v2", prompt="passage: ").precision
'float16'
"""

from typing import Literal

from pydantic import Field

from fineweb_mask.models.settings.base import DeviceName, Settings

STATIC = "static"
"""Value of `embedding.model` for the built-in encoder, which is fitted on the corpus."""

FROM_QUALITY = "from_quality"
"""Value of `embedding.model` for the vectors of the quality scorer of kind `edu`."""


class EmbeddingSettings(Settings):
    """The encoder that turns documents into vectors."""

    model: str = Field(
        STATIC,
        min_length=1,
        description="`static` (built in, fitted on this corpus), `from_quality` (the encoder of the scorer of kind "
        "`edu`; one forward pass computes score and vector), or a sentence-transformers model (folder or hub name).",
    )
    prompt: str | None = Field(
        None,
        description='Text put before each document, such as "passage: " for E5; null takes the prompt that the model '
        "defines for documents, if any.",
    )
    max_tokens: int | None = Field(
        None, ge=1, description="Maximum tokens read per document, special tokens included; null: the model's limit."
    )
    long_documents: Literal["truncate", "mean_chunks"] = Field(
        "truncate",
        description="How to embed a document of more than `max_tokens` tokens: `truncate` takes the first tokens; "
        "`mean_chunks` takes the mean over windows of that length, weighted by their tokens.",
    )
    precision: Literal["float16", "float32", "int8"] = Field(
        "float16", description="Type of the stored vectors; int8 adds one scale per document."
    )
    compute_precision: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description="Type that a transformer computes in; `auto` is bfloat16 on a GPU or CPU with instructions for "
        "it, else float32.",
    )
    on_bad_vector: Literal["raise", "drop"] = Field(
        "drop", description="On a zero or non-finite vector: `raise` ends the run; `drop` drops the document."
    )
    batch_tokens: int | None = Field(
        None,
        ge=1,
        description="Tokens per forward pass, padding included; null: 65,536 on a GPU, 2,048 on a CPU. Halved if the "
        "GPU runs out of memory.",
    )
    chunk_documents: int = Field(
        8_192,
        ge=1,
        description="Documents tokenised and sorted by length together; a killed run resumes after its last chunk.",
    )
    device: DeviceName = "auto"
    static_vocabulary: int = Field(32_000, ge=300, description="Built-in encoder: size of its vocabulary, in tokens.")
    static_dimensions: int = Field(768, ge=2, description="Built-in encoder: dimensions of its vectors.")
    static_fit_documents: int = Field(20_000, ge=1, description="Built-in encoder: number of documents to fit it on.")
