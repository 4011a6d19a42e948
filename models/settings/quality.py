"""Define the settings of the section `quality`.

>>> settings = QualitySettings.model_validate({"scorers": [{"model": "a.bin"}, {"kind": "edu", "weight": 2}]})
>>> [(scorer.name, scorer.weight) for scorer in settings.scorers]
[('fasttext', 1.0), ('edu', 2.0)]
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from fineweb_mask.models.settings.base import Place, Settings, Text

RESERVED_NAMES = frozenset(
    "row source_row text id dump url date file_path language language_score token_count n_chars content_hash "
    "quality inclusion block selected shard documents_file scores_file masks_file".split()
)
"""Columns of the dataset and of the joins that write it. A literal list, so that settings load without Arrow."""

SHARD = "{shard}"
"""What stands for a source file in the path of a sidecar."""

SIDECAR_SUFFIXES = (".npy", ".parquet", ".jsonl", ".jsonl.gz", ".jsonl.zst", ".json.gz")

Combination = Literal["weighted_sum", "minimum", "maximum"]
"""How the scores of several scorers become one quality."""


ScorerName = Annotated[
    str,
    Field(
        pattern=r"^[a-z][a-z0-9_]*$",
        description="Name of the score's column, in lower case; the kind if it is left out.",
    ),
]

KIND = "Kind of scorer; fasttext if it is left out."
"""What is said of the setting that distinguishes scorers."""


class LabelSettings(Settings):
    """Documents with scores, such as 1 and 0 for classes, for training a quality classifier."""

    path: Text = Field(description="Parquet file with a column `text` and scores.")
    score_column: Text = Field("score", description="Column with the score, or of booleans.")
    threshold: float = Field(3.0, allow_inf_nan=False, description="Minimum score of a positive example.")


class ScorerBase(Settings):
    """What all scorers have: the name of their score's column, and its weight."""

    NOT_IN_SCORE_KEY: ClassVar[frozenset[str]] = frozenset({"weight"})
    """Settings excluded from the cache key: the score does not depend on them.

    A model is identified by a hash of its content instead of its path.
    """

    name: ScorerName
    weight: float = Field(1.0, allow_inf_nan=False, description="Weight in the combined quality; 0 leaves it out.")

    @property
    def source_columns(self) -> dict[str, str]:
        """The columns of the source that the score is made from, by the setting that names them."""
        return {}

    @model_validator(mode="after")
    def _name_is_free(self) -> Self:
        if self.name in RESERVED_NAMES:
            raise ValueError(f"the name {self.name!r} is taken by a column of the dataset: choose another")
        return self


class FastTextScorerSettings(ScorerBase):
    """A fastText classifier; the score is the probability of its positive label."""

    NOT_IN_SCORE_KEY = frozenset({"weight", "model", "labels"})
    name: ScorerName = "fasttext"
    kind: Literal["fasttext"] = Field("fasttext", description=KIND)
    model: Text | None = Field(
        None, description="A .bin or .ftz file, or hf://owner/repo/file; null trains a model on `labels`."
    )
    labels: LabelSettings | None = Field(None, description="Labels to train on if `model` is null.")
    positive_label: Text = Field("__label__1", description="Label whose probability is the score.")
    lowercase: bool = Field(False, description="Convert the text to lower case first.")

    @model_validator(mode="after")
    def _has_a_model_or_labels(self) -> Self:
        if self.model is None and self.labels is None:
            raise ValueError("a fasttext scorer needs either `model` or `labels` to train one on")
        return self


class TransformerSettings(ScorerBase):
    """Settings of a scorer that is a transformers model."""

    NOT_IN_SCORE_KEY = frozenset({"weight", "model"})
    model: Text
    max_tokens: int | None = Field(
        None,
        ge=3,
        description="Maximum tokens read per document, special tokens included; null: the model's limit, which is 512 "
        "at most for perplexity.",
    )


class EduScorerSettings(TransformerSettings):
    """A transformers classifier with one regression output, such as FineWeb-Edu's; the score is that output."""

    name: ScorerName = "edu"
    kind: Literal["edu"] = Field("edu", description=KIND)
    model: Text = Field(
        "HuggingFaceFW/fineweb-edu-classifier",
        description="Folder of a sequence-classification model in safetensors, or its hub name.",
    )


class PerplexityScorerSettings(TransformerSettings):
    """A causal language model; the score is minus the mean loss of the text's tokens, in nats.

    The model is a folder, or one of the hub.
    """

    name: ScorerName = "perplexity"
    kind: Literal["perplexity"] = Field("perplexity", description=KIND)
    model: Text = Field(description="Folder of a causal language model in safetensors, or its hub name.")


class NumberSettings(ScorerBase):
    """Settings of a scorer that reads numbers which are there."""

    missing: float | None = Field(
        None, allow_inf_nan=False, description="Score for a null or non-finite value; null: such a value is an error."
    )


class ColumnScorerSettings(NumberSettings):
    """A score from a column of the source, such as FineWeb-Edu's `score`, or the difference of two.

    CoLoR-Filter's score (arXiv 2406.10670) is the loss of a model of the whole corpus minus that of one trained on the
    target texts, too.
    """

    name: ScorerName = "column"
    kind: Literal["column"] = Field("column", description=KIND)
    column: Text = Field(description="Numeric column of the source with the score.")
    minus: Text | None = Field(
        None,
        description="Numeric column to subtract: the score is then a difference, such as that of two models' losses.",
    )

    @property
    def source_columns(self) -> dict[str, str]:
        """The column, or both."""
        return {"column": self.column} | ({} if self.minus is None else {"minus": self.minus})


class SidecarScorerSettings(NumberSettings):
    """A score from a file beside each source file, as Dolma and WebOrganizer ship theirs: by id, else row by row."""

    name: ScorerName = "sidecar"
    kind: Literal["sidecar"] = Field("sidecar", description=KIND)
    path: Place = Field(
        description="Path or URL of these files, where {shard} is the path of the source file in source.path, without "
        "its ending: .npy, .parquet, .jsonl, .jsonl.gz or .jsonl.zst."
    )
    field: Text | Annotated[int, Field(ge=0)] | None = Field(
        None,
        description="Column or key with the score, those within others after a point: `attributes.quality`; of a "
        "two-dimensional .npy, the number of its column, from 0. A list of one span, [[start, end, score]], is its "
        "score.",
    )

    @model_validator(mode="after")
    def _path_is_of_each_shard(self) -> Self:
        if self.path.count(SHARD) != 1:
            raise ValueError(f"path: {self.path!r} must name the source file once, as {SHARD}: annotations/{SHARD}.npy")
        if not self.path.lower().endswith(SIDECAR_SUFFIXES):
            raise ValueError(f"path: {self.path!r} must end in one of {', '.join(SIDECAR_SUFFIXES)}")
        if isinstance(self.field, str) == self.path.lower().endswith(".npy"):
            raise ValueError(
                f"field: received {self.field!r} with {self.path!r}: name the one with the score in .parquet and "
                ".jsonl, and a number or none in .npy"
            )
        return self


def _kind(scorer: Any) -> str | None:  # noqa: ANN401
    if isinstance(scorer, dict):
        return f"kind[{scorer.get('kind', 'fasttext')}]"
    return f"kind[{getattr(scorer, 'kind', '')}]" if isinstance(scorer, Settings) else None


FastText = Annotated[FastTextScorerSettings, Tag("kind[fasttext]")]
Edu = Annotated[EduScorerSettings, Tag("kind[edu]")]
Column = Annotated[ColumnScorerSettings, Tag("kind[column]")]
Sidecar = Annotated[SidecarScorerSettings, Tag("kind[sidecar]")]
Perplexity = Annotated[PerplexityScorerSettings, Tag("kind[perplexity]")]

ScorerSettings = Annotated[FastText | Edu | Column | Sidecar | Perplexity, Discriminator(_kind)]
"""Settings of any scorer, distinguished by `kind`; the default kind is `fasttext`."""


class QualitySettings(Settings):
    """The scorers, and how their scores are combined into one quality."""

    scorers: list[ScorerSettings] = Field(
        description="The scorers; each writes one column. []: no quality, diversity and near-duplicates alone decide."
    )
    combine: Combination = Field(
        "weighted_sum",
        description="Weighted sum, minimum or maximum of the scores, each standardised with statistics of the corpus.",
    )
    by: Text | None = Field(
        None,
        description="Column of the documents, such as `language`: scores are standardised with the statistics of its "
        "value instead, where the sample has 200 documents of it. null: those of the corpus.",
    )

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        names = [scorer.name for scorer in self.scorers]
        if len(set(names)) < len(names):
            raise ValueError(f"scorer names must differ, received {names}")
        return self

    @model_validator(mode="after")
    def _one_counts(self) -> Self:
        if self.scorers and not any(scorer.weight for scorer in self.scorers):
            raise ValueError("every scorer has weight 0: give at least one another weight")
        return self


SAMPLE_LABELS = (
    "The quality is that of the sample's labels, which are synthetic and say nothing of other texts: name a model or "
    "labels of your own in quality.scorers."
)
"""What is said of a recipe that scores other documents than the sample's by the sample's labels."""

NO_QUALITY = (
    "No quality is scored: diversity and near-duplicates alone decide what is selected. To weigh quality, name a score "
    "of your own, labels or a model in quality.scorers."
)
"""What is said of a recipe without scorers."""


def quality_note(recipe: Mapping[str, Any]) -> str | None:
    """Return what a reader is to know first of the quality of a recipe, as JSON; None of one with a real score.

    >>> quality_note({"quality": {"scorers": []}}) == NO_QUALITY
    True
    """
    kinds = {scorer.get("kind") for scorer in recipe["quality"]["scorers"] if scorer.get("weight", 1.0)}
    if scores_by_sample_labels(recipe):
        return SAMPLE_LABELS
    return None if kinds else NO_QUALITY


def scores_by_sample_labels(recipe: Mapping[str, Any]) -> bool:
    """Return whether a recipe, as JSON, scores other documents than the sample's by the sample's synthetic labels.

    >>> labels = {"labels": {"path": "data_samples/labels.parquet"}}
    >>> scores_by_sample_labels({"source": {"path": "my_corpus"}, "quality": {"scorers": [labels]}})
    True
    """
    paths = [(scorer.get("labels") or {}).get("path", "") for scorer in recipe["quality"]["scorers"]]
    of_sample = any(path.replace("\\", "/").endswith("data_samples/labels.parquet") for path in paths)
    return of_sample and "data_samples" not in recipe["source"]["path"]


class TrainQualitySettings(Settings):
    """How a quality classifier is trained and measured."""

    labels: LabelSettings
    text_column: Text = Field("text", description="Column of the labels with the text.")
    lowercase: bool = Field(False, description="Convert the texts to lower case first; set the same in the scorer.")
    held_out: float = Field(0.2, gt=0.0, lt=1.0, description="Share of the labels held out to measure the model.")
    epochs: int = Field(12, ge=1, description="Passes over the labels.")
    seed: int = Field(0, ge=0, le=2**32 - 1, description="Seed of the split and of the training.")
