"""A whole recipe: `PipelineSettings`, with one section per stage.

The models are closed and strict: an unknown key or a wrong type is an error before any work starts.
"""

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from fineweb_mask.models.settings.base import Settings
from fineweb_mask.models.settings.embedding import FROM_QUALITY, EmbeddingSettings
from fineweb_mask.models.settings.engine import EngineSettings
from fineweb_mask.models.settings.output import MaterializeSettings, ReportSettings
from fineweb_mask.models.settings.quality import ColumnScorerSettings, EduScorerSettings, QualitySettings
from fineweb_mask.models.settings.selection import SelectionSettings
from fineweb_mask.models.settings.source import NUMERIC_COLUMNS, IngestSettings, SourceSettings
from fineweb_mask.models.urls import reject_credentials, require_writable


class PipelineSelectionSettings(SelectionSettings):
    """How the subset is chosen, and over which blocks of documents."""

    scope: Literal["block"] = Field("block", description="Every block of documents is selected from by itself.")
    block_size: int = Field(
        1_000_000,
        ge=1,
        description="Documents per block, at most: small shards are grouped into a block, large ones split.",
    )
    device: str = Field("auto", description="`auto` (a GPU where there is one), `cpu`, `cuda` or `cuda:N`.")


class PipelineSettings(Settings):
    """A complete recipe."""

    workspace: str = Field(
        min_length=1,
        description="Folder that holds every stage's files, the dataset and the reports; a local path or a URL that "
        "can be written to (s3://).",
    )
    source: SourceSettings
    ingest: IngestSettings = Field(default_factory=IngestSettings)
    quality: QualitySettings
    embedding: EmbeddingSettings = Field(default_factory=EmbeddingSettings)
    selection: PipelineSelectionSettings = Field(default_factory=PipelineSelectionSettings)
    materialize: MaterializeSettings = Field(default_factory=MaterializeSettings)
    report: ReportSettings = Field(default_factory=ReportSettings)
    engine: EngineSettings = Field(default_factory=EngineSettings)

    @field_validator("workspace")
    @classmethod
    def _workspace_can_be_written(cls, workspace: str) -> str:
        return require_writable(reject_credentials(workspace))

    @model_validator(mode="after")
    def _scores_of_the_source_are_carried_along(self) -> Self:
        carried = self.source.extra_columns
        if carried == "all":
            return self
        for index, scorer in enumerate(self.quality.scorers):
            if isinstance(scorer, ColumnScorerSettings) and scorer.column not in {*NUMERIC_COLUMNS, *carried}:
                raise ValueError(
                    f"quality.scorers.{index}.column: {scorer.column!r} is not read: add it to source.extra_columns"
                )
        return self

    @model_validator(mode="after")
    def _vectors_have_a_source(self) -> Self:
        if self.embedding.model == FROM_QUALITY:
            found = sum(isinstance(scorer, EduScorerSettings) for scorer in self.quality.scorers)
            if found != 1:
                raise ValueError(
                    f"embedding.model: {FROM_QUALITY} takes one scorer of kind edu in quality.scorers, found {found}"
                )
            for key, left in (("prompt", None), ("max_tokens", None), ("long_documents", "truncate")):
                if getattr(self.embedding, key) != left:
                    raise ValueError(
                        f"embedding.{key}: with {FROM_QUALITY} the text is read as the scorer of kind edu reads it: "
                        f"leave it out, and set what that scorer reads in quality.scorers"
                    )
        return self
