"""Define the settings of the section `embedding`.

>>> EmbeddingSettings(model="intfloat/e5-small-v2", prompt="passage: ").static_dimensions
768
"""

from pydantic import Field

from fineweb_mask.models.settings.base import Settings, Text

STATIC = "static"
"""Value of `embedding.model` for the built-in encoder, which is fitted on the corpus."""

FROM_QUALITY = "from_quality"
"""Value of `embedding.model` for the vectors of the quality scorer of kind `edu`."""


class EmbeddingSettings(Settings):
    """The encoder that turns documents into vectors."""

    model: Text = Field(
        STATIC,
        description="`static` (built in, fitted on this corpus), `from_quality` (the encoder of the scorer of kind "
        "`edu`; one forward pass computes score and vector), or a sentence-transformers model (folder or hub name).",
    )
    prompt: str | None = Field(
        None,
        description='Text put before each document, such as "passage: " for E5; null takes the prompt that the model '
        "defines for documents, if any.",
    )
    max_tokens: int | None = Field(
        None,
        ge=1,
        description="Maximum tokens read per document, special tokens included: of a longer one, the first; null: the "
        "model's limit.",
    )
    static_dimensions: int = Field(768, ge=2, description="Built-in encoder: dimensions of its vectors.")
