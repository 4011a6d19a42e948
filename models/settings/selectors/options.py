"""Define the options of the selectors that do not maximise the objective; those of its solvers are beside theirs."""

from pydantic import Field

from fineweb_mask.models.settings.base import Settings


class QualitySamplingSettings(Settings):
    """Options of sampling in proportion to exp(quality / temperature), without replacement (QuRating)."""

    temperature: float = Field(
        1.0, gt=0, description="Standard deviations of the quality: near 0 is top quality, large is random."
    )


class QuadmixCurveSettings(Settings):
    """How much documents are wanted, by the rank of their quality."""

    weights: dict[str, float] | None = Field(
        None, min_length=1, description="Weight (dimensionless) of each score column, by its name. None: equal weights."
    )
    omega: float = Field(0.1, gt=0, le=1, description="Share of each group's tokens above which documents are good.")
    eta: float = Field(1.0, ge=0, description="Exponent of the expected copies: 2^eta for the best.")


class QuadmixSettings(QuadmixCurveSettings):
    """Options of sampling by a function of the quality's rank inside each group.

    The paper searches the curves of all groups with small models; the defaults are the upper ends of its ranges.
    """

    by_group: dict[str, QuadmixCurveSettings] = Field(
        {},
        description="Curve of single groups, by their value of selection.group_column: a mapping to the three settings "
        "above, which the other groups have.",
    )


class TargetSettings(Settings):
    """Examples of the target tasks, which some selectors compare documents with."""

    path: str = Field(min_length=1, description="Parquet or JSON Lines file, or a pattern of files, with texts.")
    text_column: str = Field("text", min_length=1, description="Column with the text of an example.")
    task_column: str | None = Field(
        None, min_length=1, description="Column that names each example's task. None: all are of one task."
    )
