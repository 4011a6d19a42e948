"""Define the results of flows, which commands print as JSON: of runs, of pages, and of the stages in them."""

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel

from fineweb_mask.tasks.workspace.records.counts import Counts
from fineweb_mask.tasks.workspace.records.runs import QuarantinedShard
from fineweb_mask.tasks.workspace.workspace import Workspace


class StageSummary(BaseModel):
    """Files and seconds of a stage in one run."""

    stage: str
    files: int = 0
    cached: int = 0
    seconds: float = 0.0


class Summary(BaseModel):
    """Base of the summaries; each also has the fields `quarantined` and `stages`, at its own place in the JSON."""

    status: Literal["done", "quarantined"]
    workspace: str

    @classmethod
    def of(
        cls, workspace: Workspace, quarantined: Mapping[str, str], stages: list[StageSummary], **fields: object
    ) -> Self:
        """Return the summary of a run, with the reason for each quarantined shard and the other fields.

        A path of the workspace becomes the path or URL that the user knows.
        """
        shards = [QuarantinedShard(shard=shard, reason=reason) for shard, reason in quarantined.items()]
        values = {"workspace": workspace.root, "quarantined": shards, "stages": stages, **fields}
        shown = {name: workspace.display_path(one) if isinstance(one, Path) else one for name, one in values.items()}
        return cls.model_validate({"status": "quarantined" if shards else "done", **shown})


class RunSummary(Summary):
    """Result of a run of the pipeline; `fineweb-mask run --json` prints it."""

    dataset: str
    card: str
    exports: dict[str, str]  # folders of training files, by name
    report: str
    documents_in: int
    documents_kept: int
    not_selected: int
    dropped: dict[str, int]
    quarantined: list[QuarantinedShard]
    counts: Counts
    stages: list[StageSummary]
    objective: float | None
    terms: dict[str, float]
    blocks: int

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        dropped = [(f"dropped: {reason}", f"{count:,}") for reason, count in self.dropped.items()]
        aside = [(f"set aside: {one.shard}", one.reason) for one in self.quarantined]
        rows = [
            ("documents", f"{self.documents_in:,}"),
            *dropped,
            ("not selected", f"{self.not_selected:,}"),
            ("selected", f"{self.documents_kept:,}"),
            *aside,
            ("dataset", self.dataset),
            ("report", self.report),
        ]
        cells = (f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows)
        return f"<table>{''.join(cells)}</table>"


class StoppedSummary(Summary):
    """Result of a run that stopped after a stage, as it was to; `fineweb-mask run --until STAGE --json` prints it."""

    until: str  # the stage
    quarantined: list[QuarantinedShard]
    stages: list[StageSummary]


class PageSummary(Summary):
    """Result of a run that ends with a page."""

    page: str
    metrics: str
    documents: int
    quarantined: list[QuarantinedShard]
    stages: list[StageSummary]
