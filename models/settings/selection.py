"""Define the settings of the joint selection, and register the diversity metrics; neither imports torch."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pydantic import Field, field_validator

from fineweb_mask.models.settings.base import Settings
from fineweb_mask.models.settings.selectors.registry import SELECTORS

Unit = Literal["documents", "tokens"]

NEAR_DUPLICATE = 0.9
"""Cosine from which two documents are near-duplicates: in a selection by default, and on every page."""


@dataclass(frozen=True)
class MetricEntry:
    """What is known of a built-in metric before its class is imported."""

    path: str  # "module:Class" in models/selection/metrics/, for `metric_class`
    label: str  # axis label of its raw value in charts; larger is more diverse
    paper_name: str  # its name in the paper's script
    decimals: int = 4  # of its raw value in tables
    is_local: bool = False  # whether it compares a document with those near it alone; else it is a mean over all


METRICS = {
    "pairwise": MetricEntry("moments:Pairwise", "pairwise: minus the mean cosine", "Pair_simi"),
    "facility": MetricEntry(
        "facility:Facility", "facility: mean cosine to the nearest selected", "Facility", is_local=True
    ),
    "disf": MetricEntry("moments:Disf", "disf: minus the norm of the second moment", "DiSF", decimals=2),
}
"""The built-in diversity metrics: a new one is a module in models/selection/metrics/ and a line here."""

BY_GAINS = ("mean_field", "greedy")
"""Solvers that maximise the objective by the gains of documents: those that take blocks by likeness."""

if TYPE_CHECKING:
    MetricName = str
    Solver = str
else:
    MetricName = Literal[tuple(METRICS)]
    Solver = Literal[tuple(SELECTORS)]


class PolicyGradientSettings(Settings):
    """Options of the paper's mask learning.

    The paper's script learns with 10,000 steps of 128 masks and learning rates from 10 to 1.
    """

    n_epochs: int = Field(10_000, ge=1, description="Learning steps, each on one random batch (count).")
    n_rollout: int = Field(128, ge=2, description="Masks sampled in one step (count).")
    partial: float = Field(
        0.05, gt=0, le=1, description="Share of the documents in one step's batch, which has at least 8,192."
    )
    max_lr: float = Field(10.0, gt=0, description="Learning rate of the first step (logits per advantage).")
    min_lr: float = Field(1.0, ge=0, description="Learning rate of the last step (logits per advantage).")
    init: Literal["same", "quality"] = Field(
        "same", description="First logits: all zero, or the log of the quality shifted to be positive."
    )
    prune: float = Field(
        0.0, ge=0, lt=1, description="Share of the documents, lowest quality first, left out of learning."
    )


class QuadmixCurveSettings(Settings):
    """How much documents are wanted, by the rank of their quality."""

    omega: float = Field(0.1, gt=0, le=1, description="Share of each group's tokens above which documents are good.")
    eta: float = Field(1.0, ge=0, description="Exponent of the expected copies: 2^eta for the best.")


class QuadmixSettings(QuadmixCurveSettings):
    """Options of sampling by a function of the quality's rank inside each group.

    The paper searches the curves of all groups with small models; the defaults are the upper ends of its ranges.
    """

    by_group: dict[str, QuadmixCurveSettings] = Field(
        {},
        description="Curve of single groups, by their value of selection.group_column: a mapping to the two settings "
        "above, which the other groups have.",
    )


class TargetSettings(Settings):
    """Examples of the target tasks, which some selectors compare documents with."""

    path: str = Field(
        min_length=1, description="Parquet or JSON Lines file, or a pattern of files, with a column `text`."
    )
    task_column: str | None = Field(
        None, min_length=1, description="Column that names each example's task. None: all are of one task."
    )


class GroupSettings(Settings):
    """How a budget is divided among groups of documents, each of which is selected from by itself."""

    column: str = Field(
        min_length=1, description="Column whose values are the groups: one of FineWeb's, or of source.extra_columns."
    )
    shares: Literal["equal", "proportional"] | dict[str, float] = Field(
        "proportional",
        description="What each group has of the budget. equal: all the same. proportional: as much as it has of the "
        "documents (or tokens). Or a share for each value: they add up to 1, and other values get nothing. What a "
        "group cannot fill goes to the others, in proportion to their shares.",
    )

    @field_validator("shares")
    @classmethod
    def _adds_up(cls, shares: str | dict[str, float]) -> str | dict[str, float]:
        if isinstance(shares, dict):
            total = sum(shares.values())
            if not shares or min(shares.values()) <= 0 or abs(total - 1) > 1e-6:
                raise ValueError(f"shares must be positive and add up to 1, received a sum of {total:g}: {shares}")
        return shares


class SelectionSettings(Settings):
    """Options of one selection: objective, budget and solver.

    Examples
    --------
    >>> SelectionSettings(metrics={"pairwise": 1, "disf": 0.5}).metric_weights
    {'pairwise': 1.0, 'disf': 0.5}
    """

    solver: Solver = Field("mean_field", description="How the objective is maximised.")
    metrics: MetricName | dict[MetricName, float] = Field(
        "facility",
        description="Diversity metric, or a weight (dimensionless) for each of several. The default, with lamb 0.3, "
        "proves that it is near the optimum (docs/choosing.md); the paper's is pairwise.",
    )
    select_ratio: float = Field(0.1, gt=0, le=1, description="Share of the documents (or of their tokens) to select.")
    budget: int | None = Field(
        None, ge=1, description="Documents (or tokens) to select (count); overrides select_ratio."
    )
    budget_by: Unit = Field(
        "documents", description="Unit of select_ratio and budget: quality and diversity are means over as many."
    )
    lamb: float = Field(0.3, ge=0, le=1, description="Weight of quality; 1 - lamb is the weight of diversity.")
    normalize: Literal["none", "range"] = Field(
        "range",
        description="none: raw terms (the paper). range: each term runs from 0 (a random subset) "
        "to 1 (the best that the term alone can reach).",
    )
    near_duplicates: float | None = Field(
        NEAR_DUPLICATE,
        gt=0,
        le=1,
        description="Cosine from which two documents are near-duplicates: the one of lower quality is not selected, "
        "even if fewer documents are left than the budget takes. null: all may be selected.",
    )
    seed: int = Field(0, ge=0, description="Seed of every random draw.")
    policy_gradient: PolicyGradientSettings = Field(
        default_factory=PolicyGradientSettings, description="Options of the paper's solver."
    )
    group_column: str | None = Field(
        None,
        min_length=1,
        description="quadmix: column whose values are the groups that documents are ranked in. None: one group.",
    )
    targets: TargetSettings | None = Field(
        None, description="Examples of target tasks, for the selectors that read them."
    )
    temperature: float = Field(
        1.0,
        gt=0,
        description="quality_sampling: standard deviations of the quality that it is softened by. Near 0 is top "
        "quality, large is random.",
    )
    quadmix: QuadmixSettings = Field(
        default_factory=QuadmixSettings, description="Options of sampling by rank inside groups."
    )

    @field_validator("metrics")
    @classmethod
    def _positive_weights(cls, metrics: MetricName | dict[MetricName, float]) -> MetricName | dict[MetricName, float]:
        if isinstance(metrics, dict):
            for name, weight in metrics.items():
                if not 0 < weight < float("inf"):
                    raise ValueError(f"weight of metric {name!r} must be positive and finite, received {weight}")
        return metrics

    @property
    def not_used(self) -> set[str]:
        """Names of the settings that the selection does not depend on: others' options, and where files are."""
        others = SELECTORS.keys() - {self.solver}
        groups = set() if "groups" in SELECTORS[self.solver].reads else {"group_column"}
        temperature = set() if self.solver == "quality_sampling" else {"temperature"}
        return others | groups | temperature | {"targets"}

    @property
    def alike(self) -> float:
        """Cosine from which documents are told to be near-duplicates, also where these may be selected."""
        return self.near_duplicates or NEAR_DUPLICATE

    @property
    def metric_weights(self) -> dict[str, float]:
        """Weight of every built-in metric that takes part."""
        if isinstance(self.metrics, dict):
            return {str(name): weight for name, weight in self.metrics.items()}
        return {self.metrics: 1.0}
