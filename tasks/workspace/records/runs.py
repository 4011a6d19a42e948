"""Record a workspace's runs, failed ones too, each in a JSON file, the recipe of the last, and what built a product."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, Field

from fineweb_mask.models.runtime.stopping import despite_stop
from fineweb_mask.models.settings import PipelineSettings
from fineweb_mask.tasks.workspace.manifest import read_checked, write_checked
from fineweb_mask.tasks.workspace.workspace import LAST_RUN, Workspace

FOLDER = "runs"
RECORDED_PACKAGES = tuple(
    "fineweb-mask duckdb fasttext numpy prefect pyarrow sentence-transformers tokenizers torch transformers".split()
)


class QuarantinedShard(BaseModel):
    """A shard that a run quarantined, and why."""

    shard: str
    reason: str


class RunRecord(BaseModel):
    """Settings, counts and outcome of one run; a row of the catalog's `runs`."""

    started: datetime = Field(default_factory=lambda: datetime.now(UTC))
    seconds: float = 0.0
    flow: str  # such as curate, or `curate until embed` if it was to stop there
    status: Literal["done", "quarantined", "failed", "interrupted"] = "done"
    error: str | None = None
    stages_run: list[str] = []  # stages that built at least one file
    stages_cached: list[str] = []  # stages whose files were all current
    documents_in: int | None = None
    documents_selected: int | None = None
    tokens_in: int | None = None
    tokens_selected: int | None = None
    select_ratio: float
    lamb: float
    solver: str
    objective: float | None = None  # mean over the blocks, weighted by their documents
    set_aside: list[QuarantinedShard] = []
    recipe: dict[str, Any]
    source: dict[str, Any] = {}  # what is read of it, and what is left out
    flow_run: str | None = None  # Prefect's id of the flow run
    version: str
    commit: str | None = None

    def end(self, workspace: Workspace) -> Path:
        """Set `seconds`, write the record and return its path; file names sort by start time."""
        self.seconds = round((datetime.now(UTC) - self.started).total_seconds(), 3)
        identity = (self.flow_run or "local").split("-")[0]
        path = workspace.root / FOLDER / f"{self.started:%Y%m%dT%H%M%S.%fZ}-{identity}.json"
        with despite_stop():
            write_checked(path, self)
        return path

    def settings(self, workspace: str) -> PipelineSettings:
        """Return the recipe for a workspace; raises ValueError if it is of a version that had other settings."""
        return PipelineSettings.model_validate({**self.recipe, "workspace": workspace})


def run_records(workspace: Workspace) -> Iterator[RunRecord]:
    """Yield the records of a workspace's runs that can be read, the newest first."""
    for path in reversed(workspace.files(f"{FOLDER}/*.json")):
        with suppress(OSError, ValueError):
            yield read_checked(path, RunRecord)


class LastRun(BaseModel):
    """The recipe of a workspace's last run, kept there as `run.json`."""

    settings: PipelineSettings
    folder: str  # base of relative paths in the settings
    source: dict[str, Any] = {}  # what the run read of its source, and what it left out

    def save(self, workspace: Workspace) -> None:
        """Write the file to a workspace."""
        write_checked(workspace.root / LAST_RUN, self)

    @classmethod
    def load(cls, workspace: Workspace) -> Self:
        """Read the file of a workspace; raises OSError if there is none or it is damaged, ValueError if not valid."""
        return read_checked(workspace.root / LAST_RUN, cls)


def code_and_packages() -> dict[str, Any]:
    """Return the versions of this code, of Python and of the packages that affect results."""
    return {
        "code": {"version": version("fineweb-mask"), **code_commit()},
        "python": sys.version.split()[0],
        "packages": {name: version(name) for name in RECORDED_PACKAGES},
    }


def code_commit() -> dict[str, Any]:
    """Return this checkout's git commit and whether it has uncommitted changes; nulls outside a checkout."""
    root = Path(__file__).resolve().parents[3]

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(root), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout  # noqa: S603

    with suppress(OSError, subprocess.SubprocessError, ValueError):
        top, commit = git("rev-parse", "--show-toplevel", "HEAD").splitlines()
        if Path(top) == root:
            return {"commit": commit, "dirty": bool(git("status", "--porcelain"))}
    return {"commit": None, "dirty": None}
