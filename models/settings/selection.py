"""Settings of the joint selection; importing this module costs no torch."""

from typing import Literal

from pydantic import Field, field_validator

from fineweb_mask.models.settings.base import Settings

Solver = Literal["mean_field", "policy_gradient", "greedy", "top_quality", "random", "quality_sampling", "semdedup"]
MetricName = Literal["pairwise", "facility", "disf"]


class MeanFieldSettings(Settings):
    """The closed-form solver: annealing of the exact expected gradient, then swaps."""

    n_steps: int | None = Field(
        None,
        ge=1,
        description="annealing steps, each one gradient over all documents (count); none: what suits the metrics",
    )
    n_near: int = Field(256, ge=1, description="documents near the threshold that shape one Newton step (count)")
    n_neighbours: int = Field(
        64,
        ge=1,
        description="facility: least length of a document's list of nearest documents (count); "
        "a small select_ratio lengthens the lists so that most of them hold a selected document",
    )
    swap_pool: int | None = Field(
        None,
        ge=2,
        description="documents around the threshold among which one round swaps (count); none: what suits the metrics",
    )
    swap_rounds: int = Field(20, ge=0, description="most rounds of swaps that refine the selection (count)")


class PolicyGradientSettings(Settings):
    """The paper's mask learning; the defaults are the paper's."""

    n_epochs: int = Field(10_000, ge=1, description="learning steps, each on one random batch (count)")
    n_rollout: int = Field(128, ge=2, description="masks sampled in one step (count)")
    partial: float = Field(0.05, gt=0, le=1, description="share of the documents in one step's batch")
    max_lr: float = Field(10.0, gt=0, description="learning rate of the first step (logits per advantage)")
    min_lr: float = Field(1.0, ge=0, description="learning rate of the last step (logits per advantage)")
    init: Literal["same", "quality"] = Field(
        "same", description="first logits: all zero, or the log of the shifted-positive quality"
    )
    prune: float = Field(
        0.0, ge=0, lt=1, description="share of the documents, lowest quality first, left out of learning"
    )
    log_every: int = Field(50, ge=1, description="steps between two entries of the history (count)")


class QualitySamplingSettings(Settings):
    """Sampling in proportion to exp(quality / temperature), without replacement (QuRating)."""

    temperature: float = Field(
        1.0, gt=0, description="in standard deviations of the quality: near 0 is top quality, large is random"
    )


class SemDedupSettings(Settings):
    """Semantic deduplication: k-means, then the least redundant documents of every cluster."""

    n_clusters: int | None = Field(
        None, ge=1, description="k-means clusters (count); none: the square root of the document count"
    )
    n_iterations: int = Field(10, ge=1, description="k-means iterations (count)")
    keep: Literal["quality", "hard", "easy"] = Field(
        "quality",
        description="which of two near-duplicates stays: the one of higher quality, "
        "or the one farther from (hard) or nearer to (easy) its cluster's centre",
    )


class SelectionSettings(Settings):
    """What one selection maximises, under which budget, and how it is solved."""

    solver: Solver = Field("mean_field", description="how the objective is maximised")
    metrics: MetricName | dict[MetricName, float] = Field(
        "pairwise", description="diversity metric, or a weight (dimensionless) for each of several"
    )
    select_ratio: float = Field(0.1, gt=0, le=1, description="share of the documents (or of their tokens) to select")
    budget: int | None = Field(
        None, ge=1, description="documents (or tokens) to select (count); overrides select_ratio"
    )
    budget_by: Literal["documents", "tokens"] = Field("documents", description="unit of select_ratio and budget")
    lamb: float = Field(0.5, ge=0, le=1, description="weight of quality; 1 - lamb is the diversity's")
    normalize: Literal["none", "range"] = Field(
        "range",
        description="none: raw terms (the paper); range: each term runs from 0 (a random subset) "
        "to 1 (the best that the term alone can reach)",
    )
    seed: int = Field(0, ge=0, description="seed of every random draw")
    quality_weights: list[float] | None = Field(
        None,
        description="weight (dimensionless) of each quality column after standardising it; none: equal ones",
    )
    mean_field: MeanFieldSettings = Field(default_factory=MeanFieldSettings, description="closed-form solver")
    policy_gradient: PolicyGradientSettings = Field(
        default_factory=PolicyGradientSettings, description="the paper's solver"
    )
    quality_sampling: QualitySamplingSettings = Field(
        default_factory=QualitySamplingSettings, description="sampling by quality"
    )
    semdedup: SemDedupSettings = Field(default_factory=SemDedupSettings, description="semantic deduplication")

    @field_validator("metrics")
    @classmethod
    def _positive_weights(cls, metrics: MetricName | dict[MetricName, float]) -> MetricName | dict[MetricName, float]:
        if isinstance(metrics, dict):
            for name, weight in metrics.items():
                if not 0 < weight < float("inf"):
                    msg = f"weight of metric {name!r} must be positive and finite, received {weight}"
                    raise ValueError(msg)
        return metrics

    @property
    def metric_weights(self) -> dict[str, float]:
        """Weight of every built-in metric that takes part."""
        if isinstance(self.metrics, dict):
            return {str(name): weight for name, weight in self.metrics.items()}
        return {self.metrics: 1.0}
