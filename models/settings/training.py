"""Settings of `train-quality`: one classifier from labels, or from another scorer's scores."""

from pydantic import Field

from fineweb_mask.models.settings.base import Settings
from fineweb_mask.models.settings.quality import FastTextTrainingSettings, LabelSettings, ModelScorerSettings


class TeacherSettings(Settings):
    """A scorer whose scores are the labels."""

    scorer: ModelScorerSettings = Field(description="The scorer, with its model.")
    sample: int = Field(20_000, ge=20, description="Documents that the teacher scores, drawn at random.")


class TrainQualitySettings(Settings):
    """How a quality classifier is trained and measured."""

    labels: LabelSettings
    training: FastTextTrainingSettings = Field(default_factory=FastTextTrainingSettings)
    lowercase: bool = Field(False, description="Lower-case the texts first; the scorer must then do so too.")
    held_out: float = Field(0.2, gt=0.0, lt=1.0, description="Share of the labels kept from training, to measure on.")
    split_seed: int = Field(0, ge=0, le=2**32 - 1, description="Seed of the split and of the teacher's sample.")
    teacher: TeacherSettings | None = Field(None, description="Scores the texts where they have no labels.")
