"""Records of a workspace's runs: the recipe of the last one, and a JSON file for each, also for one that failed."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, Field

from fineweb_mask.models.settings import PipelineSettings
from fineweb_mask.tasks.storage.atomic import atomic_write
from fineweb_mask.tasks.storage.mirror import ensure_local
from fineweb_mask.tasks.workspace.workspace import Workspace

FOLDER = "runs"
LAST_RUN = "run.json"


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
        with atomic_write(path) as partial:
            partial.write_text(self.model_dump_json(indent=2) + "\n", encoding="utf-8")
        return path


class LastRun(BaseModel):
    """The recipe of a workspace's last run, kept there as `run.json`."""

    settings: PipelineSettings
    folder: str  # that relative paths in the settings start from

    @staticmethod
    def path(workspace: Workspace) -> Path:
        """Return where it lies."""
        return workspace.root / LAST_RUN

    def keep(self, workspace: Workspace) -> None:
        """Write it to the workspace."""
        with atomic_write(self.path(workspace)) as partial:
            partial.write_text(self.model_dump_json(indent=2) + "\n")

    @classmethod
    def of(cls, workspace: Workspace) -> Self:
        """Read it from the workspace."""
        return cls.model_validate_json(ensure_local(cls.path(workspace)).read_text())
