"""Define and validate all settings of a recipe, one module per section."""

from fineweb_mask.models.settings.embedding import FROM_QUALITY, STATIC, EmbeddingSettings
from fineweb_mask.models.settings.output import FLAT, MaterializeSettings, ReportSettings
from fineweb_mask.models.settings.pipeline import EngineSettings, PipelineSelectionSettings, PipelineSettings
from fineweb_mask.models.settings.source import IngestSettings, SourceSettings

__all__ = [
    "FLAT",
    "FROM_QUALITY",
    "STATIC",
    "EmbeddingSettings",
    "EngineSettings",
    "IngestSettings",
    "MaterializeSettings",
    "PipelineSelectionSettings",
    "PipelineSettings",
    "ReportSettings",
    "SourceSettings",
]
