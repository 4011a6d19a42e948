"""Define a complete recipe: `PipelineSettings`, with one section per stage, and that of the engine.

An unknown key or a wrong type is an error before any work starts.

>>> settings = PipelineSettings.model_validate(
...     {
...         "workspace": "workspaces/pages",
...         "source": {"path": "pages/*.parquet"},
...         "quality": {"scorers": [{"kind": "column", "column": "language_score"}]},
...     }
... )
>>> settings.selection.select_ratio, settings.embedding.model
(0.1, 'static')
"""

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from fineweb_mask.models.names import find
from fineweb_mask.models.settings.base import DeviceName, Settings, WritablePlace
from fineweb_mask.models.settings.embedding import FROM_QUALITY, EmbeddingSettings
from fineweb_mask.models.settings.output import FLAT, TEXT_IS_NO_GROUP, MaterializeSettings, ReportSettings
from fineweb_mask.models.settings.quality import EduScorerSettings, QualitySettings
from fineweb_mask.models.settings.selection import BY_GAINS, METRICS, GroupSettings, SelectionSettings
from fineweb_mask.models.settings.selectors.registry import SELECTORS, missing_inputs
from fineweb_mask.models.settings.source import IngestSettings, SourceSettings


class PipelineSelectionSettings(SelectionSettings):
    """How the subset is selected, and from which blocks of documents."""

    blocks: Literal["likeness", "order"] = Field(
        "likeness",
        description="How a corpus of more than block_size documents is cut into blocks. `likeness`: documents that are "
        "alike are in one block, and a sample says what each block gives. `order`: documents that follow each other, "
        "each block giving the same share (the paper). Budgets by group, and solvers that do not maximise the "
        "objective by its gains, take blocks by order.",
    )
    groups: GroupSettings | None = Field(
        None,
        description="Budgets by group. The documents of each group in a block are their own block. None: "
        "one budget. `compare` ignores them.",
    )
    block_size: int = Field(
        50_000,
        ge=1,
        description="Maximum documents per block. A corpus of no more is one block.",
    )
    device: DeviceName = "auto"

    @field_validator("metrics")
    @classmethod
    def _some_metric_takes_part(cls, metrics: str | dict[str, float]) -> str | dict[str, float]:
        if not metrics:
            raise ValueError(f"must name one of {', '.join(METRICS)} or more; with lamb: 1 it counts for nothing")
        return metrics

    @model_validator(mode="after")
    def _groups_divide_a_share_among_blocks(self) -> Self:
        if self.groups is None:
            return self
        if self.budget is not None:
            raise ValueError(
                f"groups: they divide select_ratio of the corpus, but budget, {self.budget}, is what every block "
                "gives: use select_ratio"
            )
        return self

    @property
    def by_likeness(self) -> bool:
        """Whether a corpus of more than one block is cut into blocks of documents that are alike."""
        return self.blocks == "likeness" and self.groups is None and self.solver in BY_GAINS


class EngineSettings(Settings):
    """Where and how many tasks run at the same time."""

    kind: Literal["local", "ray"] = Field(
        "local",
        description="`local`: jobs run in threads of this process. `ray`: in the processes of a Ray cluster, whose "
        "host:port RAY_ADDRESS names; without, of a Ray of this machine alone that ends with the run.",
    )
    workers: int = Field(
        2,
        ge=1,
        le=64,
        description="Tasks that run at the same time; one of them uses the GPU. Fewer than eight cores without a GPU "
        "select from one block after the other.",
    )
    memory_limit: str = Field(
        "2GB",
        pattern=r"^\d+(\.\d+)?\s*[KMGT]i?B$",
        description="Memory that DuckDB may use while it looks for duplicates, before it spills to disk.",
    )


class PipelineSettings(Settings):
    """A complete recipe."""

    workspace: WritablePlace = Field(
        description="Folder for the files of all stages, the dataset and the reports; a local path or a writable URL "
        "(s3://, gs://, az://)."
    )
    source: SourceSettings
    ingest: IngestSettings = Field(default_factory=IngestSettings)
    quality: QualitySettings
    embedding: EmbeddingSettings = Field(default_factory=EmbeddingSettings)
    selection: PipelineSelectionSettings = Field(default_factory=PipelineSelectionSettings)
    materialize: MaterializeSettings = Field(default_factory=MaterializeSettings)
    report: ReportSettings = Field(default_factory=ReportSettings)
    engine: EngineSettings = Field(default_factory=EngineSettings)

    @property
    def named_columns(self) -> dict[str, str]:
        """The columns of the documents that settings name, by the settings' keys."""
        groups, layout, copies = self.selection.groups, self.materialize.layout, self.ingest.copies
        named = {
            f"quality.scorers.{index}.{key}": column
            for index, scorer in enumerate(self.quality.scorers)
            for key, column in scorer.source_columns.items()
        }
        single = {
            "quality.by": self.quality.by,
            "selection.groups.column": None if groups is None else groups.column,
            "selection.group_column": self.selection.group_column,
            "ingest.copies.prefer": next(iter(copies.prefer), None),
            "ingest.copies.exempt": next(iter(copies.exempt), None),
            "materialize.layout": None if layout == FLAT else layout,
        }
        named |= {key: column for key, column in single.items() if column is not None}
        return named | {f"report.by.{index}": column for index, column in enumerate(self.report.by or [])}

    @model_validator(mode="after")
    def _text_is_no_group(self) -> Self:
        for key, column in self.named_columns.items():
            if not key.startswith("quality.scorers") and find(column, {"text", self.source.text_column}):
                raise ValueError(f"{key}: received {column!r}: {TEXT_IS_NO_GROUP}")
        return self

    @model_validator(mode="after")
    def _solver_has_what_it_reads(self) -> Self:
        selection = self.selection
        missing = missing_inputs(
            selection.solver, has_targets=selection.targets is not None, scorers=len(self.quality.scorers)
        )
        if not self.quality.scorers and SELECTORS[selection.solver].reads - {"groups"} == {"quality"}:
            missing = "it selects by quality alone: set quality.scorers"
        if not self.quality.scorers and selection.lamb == 1:
            raise ValueError("selection.lamb: 1 is for quality alone, and quality.scorers is empty: lower it")
        if missing is not None:
            raise ValueError(f"selection.solver: {selection.solver}: {missing}")
        return self

    @model_validator(mode="after")
    def _from_quality_has_one_edu_scorer(self) -> Self:
        if self.embedding.model == FROM_QUALITY:
            found = sum(isinstance(scorer, EduScorerSettings) for scorer in self.quality.scorers)
            if found != 1:
                raise ValueError(
                    f"embedding.model: {FROM_QUALITY} takes one scorer of kind edu in quality.scorers, found {found}"
                )
            for key in ("prompt", "max_tokens"):
                if getattr(self.embedding, key) is not None:
                    raise ValueError(
                        f"embedding.{key}: with {FROM_QUALITY} the scorer of kind edu reads the text: leave it out, "
                        "and set max_tokens of that scorer in quality.scorers"
                    )
        return self
