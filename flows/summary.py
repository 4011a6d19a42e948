"""What flows return and commands print as JSON: `RunSummary`, `PageSummary`, `StageSummary`."""

from typing import Literal

from pydantic import BaseModel

from fineweb_mask.tasks.workspace.counts import Counts


class StageSummary(BaseModel):
    """What a run spent on a stage."""

    stage: str
    files: int = 0
    cached: int = 0
    seconds: float = 0.0


class Quarantined(BaseModel):
    """A shard that was set aside."""

    shard: str
    reason: str


class RunSummary(BaseModel):
    """What a run of the pipeline did; `fineweb-mask run --json` prints it."""

    status: Literal["done", "quarantined"]
    workspace: str
    dataset: str
    card: str
    report: str
    documents_in: int
    documents_kept: int
    not_selected: int
    dropped: dict[str, int]
    quarantined: list[Quarantined]
    counts: Counts
    stages: list[StageSummary]
    busy_seconds: float  # in which at least one job was at work
    objective: float | None
    terms: dict[str, float]
    blocks: int


class PageSummary(BaseModel):
    """What a run that ends in a page did."""

    status: Literal["done", "quarantined"]
    workspace: str
    page: str
    metrics: str
    documents: int
    quarantined: list[Quarantined]
    stages: list[StageSummary]
