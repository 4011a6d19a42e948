"""Define the results of flows, which commands print as JSON: `RunSummary`, `PageSummary`, `StageSummary`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel

from fineweb_mask.tasks.workspace.counts import Counts
from fineweb_mask.tasks.workspace.workspace import Workspace


class StageSummary(BaseModel):
    """Files and seconds of a stage in one run."""

    stage: str
    files: int = 0
    cached: int = 0
    seconds: float = 0.0


class Quarantined(BaseModel):
    """A quarantined shard."""

    shard: str
    reason: str


class Summary(BaseModel):
    """Base of the summaries; each also has the fields `quarantined` and `stages`, at its own place in the JSON."""

    status: Literal["done", "quarantined"]
    workspace: str

    @classmethod
    def of(
        cls,
        workspace: Workspace,
        quarantined: Mapping[str, str],
        stages: list[StageSummary],
        **fields: Any,  # noqa: ANN401
    ) -> Self:
        """Return the summary of a run.

        Parameters
        ----------
        workspace
            The workspace of the run.
        quarantined
            Reason for each quarantined shard.
        stages
            What was spent on each stage.
        **fields
            The other fields. A path of the workspace becomes the path or URL that the user knows.
        """
        shown = {
            name: workspace.display_path(value) if isinstance(value, Path) else value
            for name, value in {"workspace": workspace.root, **fields}.items()
        }
        shards = [Quarantined(shard=shard, reason=reason) for shard, reason in quarantined.items()]
        return cls(status="quarantined" if shards else "done", quarantined=shards, stages=stages, **shown)


class RunSummary(Summary):
    """Result of a run of the pipeline; `fineweb-mask run --json` prints it."""

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
    busy_seconds: float  # in which at least one job was running
    objective: float | None
    terms: dict[str, float]
    blocks: int


class PageSummary(Summary):
    """Result of a run that ends with a page."""

    page: str
    metrics: str
    documents: int
    quarantined: list[Quarantined]
    stages: list[StageSummary]
