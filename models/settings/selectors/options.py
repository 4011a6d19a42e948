"""Define the options of the selectors that do not maximise the objective; those of its solvers are beside theirs."""

from typing import Literal

from pydantic import Field

from fineweb_mask.models.settings.base import Settings
from fineweb_mask.models.settings.quality import OneScorerSettings


class ClusterSettings(Settings):
    """Options of k-means on unit vectors."""

    n_clusters: int | None = Field(
        None, ge=1, description="Clusters of k-means (count). None: the square root of the document count."
    )
    n_iterations: int = Field(10, ge=1, description="Iterations of k-means (count).")


class SemDedupSettings(ClusterSettings):
    """Options of semantic deduplication: k-means, then the least redundant documents of every cluster."""

    keep: Literal["quality", "hard", "easy"] = Field(
        "quality",
        description="Which of two near-duplicates stays: the one of higher quality, "
        "or the one farther from (hard, the paper's) or nearer to (easy) its cluster's centre.",
    )
    eps: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Documents with a cosine above 1 - eps to one before them in their cluster are never selected, "
        "even if fewer documents then remain than the budget. None: the least redundant fill the budget.",
    )


class D4Settings(SemDedupSettings):
    """Options of D4: semantic deduplication, k-means again, then the documents far from their cluster's centre."""

    keep: Literal["quality", "hard", "easy"] = Field(
        "hard", description="Which of two near-duplicates stays, as for semdedup."
    )
    eps: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Documents with a cosine above 1 - eps to one before them in their cluster are selected last. "
        "None: so many that dedup_ratio remains.",
    )
    dedup_ratio: float = Field(
        0.75, gt=0, le=1, description="Share of the documents that deduplication keeps, where eps is None."
    )


class KmqSettings(ClusterSettings):
    """Options of k-means-quality sampling: a budget for each cluster, sampled by quality."""

    budgets: Literal["proportional", "equal"] = Field(
        "proportional",
        description="What a cluster gives: as much as it has of the documents, as in the paper, or all the same, as in "
        "its published code.",
    )
    temperature: float = Field(
        1.0, gt=0, description="Standard deviations of the quality: near 0 is top quality, large is random."
    )


class QualitySamplingSettings(Settings):
    """Options of sampling in proportion to exp(quality / temperature), without replacement (QuRating)."""

    temperature: float = Field(
        1.0, gt=0, description="Standard deviations of the quality: near 0 is top quality, large is random."
    )


class DsirSettings(Settings):
    """Options of selection by hashed n-gram importance weights."""

    sample: bool = Field(
        True,
        description="Whether to sample in proportion to the importance weights; else the largest are selected.",
    )
    by_task: bool = Field(
        False,
        description="Whether each task of `targets` has weights of its own, and a share of the budget in proportion to "
        "its examples; else all examples are one target.",
    )
    min_tokens: int = Field(
        100, ge=0, description="Words and punctuation below which a document is selected last (count)."
    )


class QuadmixCurveSettings(Settings):
    """How often documents are wanted, by the rank of their quality."""

    weights: dict[str, float] | None = Field(
        None, min_length=1, description="Weight (dimensionless) of each score column, by its name. None: equal weights."
    )
    omega: float = Field(0.1, gt=0, le=1, description="Share of each group's tokens above which documents are good.")
    steepness: float = Field(
        1000.0, ge=0, description="How sharply the expected copies fall at omega: 0 is the same for all above it."
    )
    eta: float = Field(1.0, ge=0, description="Exponent of the expected copies: 2^eta for the best.")
    floor: float = Field(0.001, ge=0, description="Expected copies of documents below omega.")


class QuadmixSettings(QuadmixCurveSettings):
    """Options of sampling by a function of the quality's rank inside each group.

    The paper searches the curves of all groups with small models; the defaults are the upper ends of its ranges.
    """

    by_group: dict[str, QuadmixCurveSettings] = Field(
        {}, description="Curve of single groups, by their value of selection.group_column; others have the one above."
    )
    max_repeats: int = Field(
        1,
        ge=1,
        description="How often a document may be taken (count); above 1, the dataset says it in a column `repeats`.",
    )


class OdisSettings(Settings):
    """Options of the selection from the principal components of the scores."""

    variance: float = Field(0.95, gt=0, le=1, description="Share of the scores' variance that the components keep.")


class BetrSettings(Settings):
    """Options of ranking by target examples."""

    combine: Literal["best", "mean"] = Field(
        "best",
        description="A document's score: the best of its ranks for all examples, or the mean of minus their log.",
    )


class IngeniousSettings(Settings):
    """Options of sampling by gains of coverage within random parts."""

    part_size: int = Field(1500, ge=1, description="Documents of one random part (count).")
    sample: bool = Field(True, description="Whether to sample by the gains; else the largest of each part are taken.")


class QuadSettings(ClusterSettings):
    """Options of the bandit that scores few documents of each cluster."""

    scorer: OneScorerSettings | None = Field(
        None,
        description="Model that scores the documents that are looked at, and no others. None: their quality, which all "
        "documents have.",
    )
    exploration: float = Field(
        0.1,
        ge=0,
        description="Weight of clusters that were looked at less, in standard deviations of the score: 0 is greedy, "
        "a large one takes the clusters in turn.",
    )
    batch: int = Field(32, ge=1, description="Documents of a cluster that are scored together (count).")
    least: float = Field(
        0.0,
        description="Score from which a document is good, in standard deviations above the mean of those that were "
        "scored. It goes on until the good ones fill the budget.",
    )


class GivenSettings(Settings):
    """An earlier selection, which a new one goes with: for a new dump of a growing corpus."""

    path: str = Field(min_length=1, description="Local workspace whose selected documents are held already.")


class TargetSettings(Settings):
    """Examples of the target tasks, which some selectors compare documents with."""

    path: str = Field(min_length=1, description="Parquet or JSON Lines file, or a pattern of files, with texts.")
    text_column: str = Field("text", min_length=1, description="Column with the text of an example.")
    task_column: str | None = Field(
        None, min_length=1, description="Column that names each example's task. None: all are of one task."
    )
    sample_documents: int = Field(
        20_000, ge=1, description="dsir: documents sampled to measure how frequent n-grams are in the corpus (count)."
    )
