"""The records of a workspace's runs: one small JSON file each, written when a run ends, also one that fails."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field

from tasks.lake import Workspace
from tasks.whole_files import written_file

FOLDER = "runs"


class SetAside(BaseModel):
    """A shard that a run set aside."""

    shard: str
    reason: str


class RunRecord(BaseModel):
    """What one run was asked for, what it did and how it ended; a row of the catalog's `runs`."""

    started: datetime = Field(default_factory=lambda: datetime.now(UTC))
    seconds: float = 0.0
    flow: str  # curate, or the stage that was run by itself
    status: Literal["done", "quarantined", "failed", "interrupted"] = "done"
    error: str | None = None
    stages_run: list[str] = []  # stages that built at least one file
    stages_cached: list[str] = []  # stages of which every file was there before
    documents_in: int | None = None
    documents_selected: int | None = None
    tokens_in: int | None = None
    tokens_selected: int | None = None
    select_ratio: float
    lamb: float
    solver: str
    objective: float | None = None  # mean over the blocks, by their documents
    set_aside: list[SetAside] = []
    recipe: dict[str, Any]
    flow_run: str | None = None  # its id in Prefect
    version: str
    commit: str | None = None

    def end(self, workspace: Workspace) -> Path:
        """Take the time and write the record; files sort by when the runs started."""
        self.seconds = round((datetime.now(UTC) - self.started).total_seconds(), 3)
        identity = (self.flow_run or "local").split("-")[0]
        path = workspace.root / FOLDER / f"{self.started:%Y%m%dT%H%M%S.%fZ}-{identity}.json"
        with written_file(path) as partial:
            partial.write_text(self.model_dump_json(indent=2) + "\n", encoding="utf-8")
        return path
