"""What a workspace holds, stage by stage: read from its files, without a server."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError

from fineweb_mask.flows.engine.plan import Curation, PretrainedModels
from fineweb_mask.flows.engine.scheduler import STAGES, OnDone, Stage, recorded_seconds
from fineweb_mask.flows.engine.session import check_inputs
from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.models.settings import FROM_QUALITY, STATIC, PipelineSettings
from fineweb_mask.models.urls import reject_credentials, require_writable
from fineweb_mask.tasks.dataset.output import Output
from fineweb_mask.tasks.embed import EmbedJob
from fineweb_mask.tasks.score import ScoreJob
from fineweb_mask.tasks.workspace.catalog import write_catalog
from fineweb_mask.tasks.workspace.job import StageJob
from fineweb_mask.tasks.workspace.runs import LastRun
from fineweb_mask.tasks.workspace.workspace import StageFile, Workspace

FOLDERS: dict[Stage, str] = {"ingest": "documents", "score": "scores", "embed": "embeddings", "select": "masks"}
"""Where a stage writes one file per shard."""
PRODUCTS: dict[Stage, str] = {"dedup": "duplicates", "report": "reports"}
"""Where a stage writes one product."""


class StatusError(WorkspaceError, ValueError):
    """The state of a folder cannot be told."""


class StageStatus(BaseModel):
    """How far a stage is. A stale file is one that a run would make anew."""

    stage: Stage
    done: int = 0
    missing: int = 0
    stale: int = 0
    rows: int = 0
    bytes: int = 0
    seconds: float = 0.0  # spent by the runs that wrote the files, where they left a record
    documents_per_second: float | None = None


class WorkspaceStatus(BaseModel):
    """How far every stage of a workspace is, under the recipe of its last run."""

    workspace: str
    shards: int
    stages: list[StageStatus]


class _JobProbe:
    """Takes the jobs of a pipeline and only looks whether they are done."""

    def __init__(self) -> None:
        self.found: dict[Stage, list[tuple[StageJob, StageFile | None]]] = defaultdict(list)

    def expect(self, stage: Stage, jobs: int) -> None:
        """Nobody watches."""

    def add(self, stage: Stage, job: StageJob, then: OnDone) -> None:
        """Look for a job's output."""
        file = job.current()
        self.found[stage].append((job, file))
        if file is None and isinstance(job, ScoreJob | EmbedJob):
            then(_as_it_will_be(job))  # a lost file is made again as it was, and what was made of it stands
        elif file is not None:
            then(file)


def _as_it_will_be(job: ScoreJob | EmbedJob) -> StageFile:
    return StageFile(
        stage=job.key.stage, name=job.name, path="", rows=job.documents.rows, bytes=0, fingerprint=job.key.fingerprint
    )


class Inspection(NamedTuple):
    """What was found in a workspace under the recipe of its last run."""

    workspace: Workspace
    settings: PipelineSettings
    shards: list[str]
    found: dict[Stage, list[tuple[StageJob, StageFile | None]]]
    curation: Curation


def last_run(folder: str | Path) -> tuple[Workspace, LastRun, Path]:
    """Return a workspace, the recipe of its last run, and the folder that relative paths in the recipe start from.

    Raises
    ------
    StatusError
        If the folder is no workspace, or the folder that the run was begun from is gone.
    """
    try:
        workspace = Workspace(require_writable(reject_credentials(str(folder))))
        workspace.look()
        last = LastRun.of(workspace)
    except (FileNotFoundError, ValidationError) as error:
        raise StatusError(f"{folder} is no workspace in which a run was begun: it has no readable run.json") from error
    except (OSError, ValueError) as error:
        raise StatusError(str(error)) from error
    begun = Path(last.folder)
    if not begun.is_dir() and workspace.url is None:
        raise StatusError(f"{folder}: the folder {last.folder}, from which its last run was begun, is gone")
    return workspace, last, begun if begun.is_dir() else Path.cwd()  # the run was another machine's


def inspect_workspace(folder: str | Path) -> Inspection:
    """Return what is there of every stage, under the recipe of the workspace's last run.

    Raises
    ------
    StatusError
        If the folder is no workspace, or its source or models are out of reach.
    """
    workspace, last, begun = last_run(folder)
    with chdir(begun):
        try:
            shards = check_inputs(last.settings)
            given = PretrainedModels.of(last.settings)
        except (OSError, ValueError, ImportError) as error:
            raise StatusError(f"{folder}: what its last run read is out of reach: {error}") from error
        looked = _JobProbe()
        curation = Curation(looked, workspace, last.settings, shards, given)
        curation.plan_documents()
        if curation.is_scored:
            curation.plan_selection()
            if set(curation.masks) == {shard.name for shard in shards}:
                curation.plan_dataset()
                curation.plan_report([])
    return Inspection(workspace, last.settings, [shard.name for shard in shards], looked.found, curation)


def workspace_status(folder: str | Path) -> WorkspaceStatus:
    """Return how far every stage is, under the recipe of the workspace's last run.

    Raises
    ------
    StatusError
        If the folder is no workspace, or its source or models are out of reach.
    """
    look = inspect_workspace(folder)
    stages = [
        _stage(look.workspace, stage, look.found[stage], look.shards, look.settings) for stage in _stages(look.settings)
    ]
    return WorkspaceStatus(
        workspace=look.workspace.display_path(look.workspace.root), shards=len(look.shards), stages=stages
    )


def _stages(settings: PipelineSettings) -> Iterator[Stage]:
    left_out = {"score", "embed"} if settings.embedding.model == FROM_QUALITY else {"score_embed"}
    return (stage for stage in STAGES if stage not in left_out)


def _stage(
    workspace: Workspace,
    stage: Stage,
    found: list[tuple[StageJob, StageFile | None]],
    shards: list[str],
    settings: PipelineSettings,
) -> StageStatus:
    files = [(job, file) for job, file in found if file is not None]
    seconds = sum(recorded_seconds(workspace, job) for job, _ in files)
    rows = sum(file.rows for _, file in files)
    status = StageStatus(
        stage=stage,
        rows=rows,
        bytes=sum(file.bytes for _, file in files),
        seconds=round(seconds, 3),
        documents_per_second=round(rows / seconds, 1) if rows and seconds else None,
    )
    if stage == "fit":
        trained = sum(getattr(scorer, "model", "") is None for scorer in settings.quality.scorers)
        status.done = len(files)
        status.missing = trained + 1 + (settings.embedding.model == STATIC) - len(files)
    elif stage == "materialize":
        _count(status, is_done=bool(files), is_there=Output.of(workspace, settings.materialize).is_there)
    elif stage in PRODUCTS:
        _count(status, is_done=bool(files), is_there=workspace.holds(workspace.root / PRODUCTS[stage]))
    else:
        done = {name for job, _ in files for name in _shards_of(job)}
        for name in shards:
            _count(status, is_done=name in done, is_there=_is_there(workspace, stage, name))
    return status


def _count(status: StageStatus, *, is_done: bool, is_there: bool) -> None:
    if is_done:
        status.done += 1
    elif is_there:
        status.stale += 1
    else:
        status.missing += 1


def _is_there(workspace: Workspace, stage: Stage, shard: str) -> bool:
    folders = [FOLDERS["score"], FOLDERS["embed"]] if stage == "score_embed" else [FOLDERS[stage]]
    return any(workspace.holds(workspace.shard_path(folder, shard)) for folder in folders)


def _shards_of(job: StageJob) -> list[str]:
    group: list[Any] | None = getattr(job, "shards", None)
    return [job.name] if group is None else [shard.name for shard in group]


class CatalogError(WorkspaceError, ValueError):
    """There is no catalog of the workspace as it is now."""


def rewrite_catalog(folder: str) -> None:
    """Write the catalog of what is there under the recipe of the workspace's last run.

    Raises
    ------
    CatalogError
        If the folder is no workspace, is in use, or what its last run read is out of reach.
    """
    workspace = Workspace(folder)
    if not workspace.holds(LastRun.path(workspace)):
        raise CatalogError(
            f"{folder} is no workspace in which a run was begun: first `fineweb-mask run RECIPE --workspace {folder}`"
        )
    try:
        with workspace.exclusive():
            write_catalog(workspace, inspect_workspace(folder).curation.catalogued())
    except (StatusError, WorkspaceError, OSError) as error:
        raise CatalogError(str(error)) from error
