"""Define the settings of `train-quality`, which trains a classifier from labels or another scorer's scores."""

from pydantic import Field

from fineweb_mask.models.settings.base import Settings
from fineweb_mask.models.settings.quality import LabelSettings, ModelScorerSettings


class FastTextTrainingSettings(Settings):
    """How to train the classifier; the defaults suit a few thousand labels."""

    epochs: int = Field(12, ge=1, description="Passes over the labels.")
    learning_rate: float = Field(0.5, gt=0.0, allow_inf_nan=False, description="Initial learning rate.")
    dimensions: int = Field(32, ge=1, description="Number of values in a word vector.")
    word_ngrams: int = Field(2, ge=1, description="Longest word n-gram.")
    buckets: int = Field(200_000, ge=1, description="Hash buckets for n-grams.")
    seed: int = Field(0, ge=0, description="Seed of the training.")
    autotune_seconds: int | None = Field(
        None,
        ge=1,
        description="Seconds for fastText to search for the best settings, measured on a fifth of the labels; null "
        "takes the settings above. The model then depends on the machine's speed.",
    )


class TeacherSettings(Settings):
    """A scorer that provides the labels."""

    scorer: ModelScorerSettings = Field(description="The scorer, with its model.")
    sample: int = Field(20_000, ge=20, description="Documents drawn at random for the teacher to score.")


class TrainQualitySettings(Settings):
    """How a quality classifier is trained and measured."""

    labels: LabelSettings
    training: FastTextTrainingSettings = Field(default_factory=FastTextTrainingSettings)
    lowercase: bool = Field(False, description="Convert the texts to lower case first; set the same in the scorer.")
    held_out: float = Field(0.2, gt=0.0, lt=1.0, description="Share of the labels held out to measure the model.")
    split_seed: int = Field(0, ge=0, le=2**32 - 1, description="Seed of the split and of the teacher's sample.")
    teacher: TeacherSettings | None = Field(None, description="Scorer that labels texts without labels.")
