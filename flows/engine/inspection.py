"""Inspect what a workspace holds of every stage, from its files alone; end a run that has nothing to do.

Nothing here needs Prefect.
"""

from collections import defaultdict
from contextlib import chdir
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ValidationError

from fineweb_mask.flows.display.listeners import not_shown
from fineweb_mask.flows.engine.choices import PretrainedModels, is_trained
from fineweb_mask.flows.engine.inputs import check_inputs, workspace_of
from fineweb_mask.flows.engine.planning.plan import Plan
from fineweb_mask.flows.engine.records import describe, recorded, summarize, update_catalog
from fineweb_mask.flows.engine.registry import STAGES, stages_shown_as
from fineweb_mask.flows.engine.scheduler import NotFinishedError, OnDone, Scheduler
from fineweb_mask.flows.summary import RunSummary
from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.models.settings import FROM_QUALITY, STATIC, PipelineSettings
from fineweb_mask.models.urls import reject_credentials, require_writable
from fineweb_mask.tasks.comparison.variants import reads_targets
from fineweb_mask.tasks.dataset.output import Output
from fineweb_mask.tasks.dataset.partition import PartJob
from fineweb_mask.tasks.dedup.duplicates import DedupJob
from fineweb_mask.tasks.dedup.near_duplicates import NearDedupJob
from fineweb_mask.tasks.embed import EmbedJob
from fineweb_mask.tasks.judge import JudgeJob
from fineweb_mask.tasks.reporting.sections import StageTime
from fineweb_mask.tasks.score import ScoreJob
from fineweb_mask.tasks.workspace.job import StageJob, recorded_seconds
from fineweb_mask.tasks.workspace.listing import Listing, update_index
from fineweb_mask.tasks.workspace.references import StageFile
from fineweb_mask.tasks.workspace.runs import LastRun
from fineweb_mask.tasks.workspace.workspace import Workspace, disk_errors_explained


class StatusError(WorkspaceError, ValueError):
    """The state of a folder cannot be determined."""


class StageStatus(BaseModel):
    """Number of a stage's files that are done, that a run would build, and that are of other settings or inputs."""

    stage: str
    done: int = 0
    missing: int = 0
    stale: int = 0
    rows: int = 0
    bytes: int = 0
    seconds: float = 0.0  # spent by the runs that wrote the files, where they left a record
    documents_per_second: float | None = None


class WorkspaceStatus(BaseModel):
    """The state of every stage of a workspace, under the recipe of its last run."""

    workspace: str
    shards: int
    stages: list[StageStatus]


class _JobProbe:
    """Takes the jobs of a plan and only checks whether their outputs are current."""

    def __init__(self, listing: Listing) -> None:
        self._listing = listing
        self.quarantined: dict[str, str] = {}
        self.at_once = 1
        self.found: dict[str, list[tuple[StageJob, StageFile | None]]] = defaultdict(list)  # by stage

    def expect(self, stage: str, jobs: int) -> None:
        """Ignore how many jobs there will be."""

    def add(self, job: StageJob, on_done: OnDone) -> None:
        """Check a job's output."""
        if isinstance(job, JudgeJob):
            job = job.work  # the output is its own
        file = job.current(self._listing)
        self.found[job.stage.shown_as].append((job, file))
        if file is None and isinstance(job, ScoreJob | EmbedJob):
            on_done(_rebuilt(job))  # a lost file would be rebuilt identically, so what was derived from it is valid
        elif file is not None:
            on_done(file)

    def done(self, job: StageJob) -> StageFile | None:
        """Return a job's output if it is current, else None."""
        return job.current(self._listing)

    def finish(self) -> None:
        """Return at once: every job was checked when it was added."""

    def times(self) -> list[StageTime]:
        """Return no times: nothing is run."""
        return []


def _rebuilt(job: ScoreJob | EmbedJob) -> StageFile:
    """Return the reference to a lost file as it would be rebuilt; it has no path."""
    return StageFile(
        stage=job.stage.name, name=job.name, path="", rows=job.documents.rows, bytes=0, fingerprint=job.key.fingerprint
    )


class Inspection(NamedTuple):
    """The jobs of a workspace under the recipe of its last run, and their outputs, if current."""

    workspace: Workspace
    settings: PipelineSettings
    shards: list[str]
    jobs: dict[str, list[tuple[StageJob, StageFile | None]]]  # with their outputs, by stage
    plan: Plan


def open_workspace(folder: str | Path) -> Workspace:
    """Return a workspace in which a run was begun, as it is now.

    Raises
    ------
    StatusError
        If the folder is none.
    """
    try:
        workspace = Workspace(require_writable(reject_credentials(str(folder))))
        workspace.refresh_listing()
        is_begun = workspace.exists(LastRun.path(workspace))
    except (OSError, ValueError) as error:
        raise StatusError(str(error)) from error
    if not is_begun:
        raise StatusError(f"{folder} is no workspace in which a run was begun: it has no run.json")
    return workspace


def last_run(folder: str | Path) -> tuple[Workspace, LastRun, Path]:
    """Return a workspace, the recipe of its last run, and the folder that relative paths in the recipe start from.

    Raises
    ------
    StatusError
        If the folder is no workspace, or the folder that the run was begun from is gone.
    """
    workspace = open_workspace(folder)
    try:
        last = LastRun.load(workspace)
    except ValidationError as error:
        raise StatusError(f"{folder} is no workspace in which a run was begun: it has no readable run.json") from error
    except (OSError, ValueError) as error:
        raise StatusError(str(error)) from error
    begun = Path(last.folder)
    if not begun.is_dir() and workspace.url is None:
        raise StatusError(
            f"{folder}: the folder {last.folder}, from which its last run was begun, is gone: run its recipe "
            "again from another"
        )
    return workspace, last, begun if begun.is_dir() else Path.cwd()  # the run was another machine's


def inspect_workspace(folder: str | Path) -> Inspection:
    """Return the jobs of every stage and their outputs, under the recipe of the workspace's last run.

    Raises
    ------
    StatusError
        If the folder is no workspace, or its source or models are out of reach.
    """
    workspace, last, begun = last_run(folder)
    with chdir(begun):
        try:
            return inspect_recipe(workspace, last.settings)
        except (OSError, ValueError, ImportError) as error:
            raise StatusError(f"{folder}: what its last run read is out of reach: {error}") from error


def inspect_recipe(workspace: Workspace, settings: PipelineSettings) -> Inspection:
    """Return the jobs of every stage and their outputs, under a recipe.

    Raises
    ------
    OSError, ValueError, ImportError
        If the source or a model of the recipe is out of reach.
    """
    shards = check_inputs(settings)
    models = PretrainedModels.of(settings)
    listing = Listing.of(workspace)
    probe = _JobProbe(listing)
    plan = Plan(probe, workspace, settings, shards, models, listing=listing, remembers=False)
    plan.prepare()
    if plan.is_prepared:
        plan.write_early()
        plan.select()
        if set(plan.masks) == {shard.name for shard in shards}:
            plan.materialize()
            plan.export()
            plan.report()
    return Inspection(workspace, settings, [shard.name for shard in shards], probe.found, plan)


def workspace_status(folder: str | Path) -> WorkspaceStatus:
    """Return the state of every stage, under the recipe of the workspace's last run.

    Raises
    ------
    StatusError
        If the folder is no workspace, or its source or models are out of reach.
    """
    found = inspect_workspace(folder)
    return WorkspaceStatus(
        workspace=found.workspace.display_path(found.workspace.root),
        shards=len(found.shards),
        stages=stage_statuses(found),
    )


def stage_statuses(found: Inspection) -> list[StageStatus]:
    """Return the state of the stages that take part in the recipe, in their order."""
    left_out = {"score", "embed"} if found.settings.embedding.model == FROM_QUALITY else {"score_embed"}
    if not found.settings.embedding.keep and not found.jobs["embed"]:
        left_out.add("embed")
    if not found.settings.materialize.export:
        left_out.add("export")
    return [_stage(found, stage) for stage in STAGES if stage not in left_out]


def fits(settings: PipelineSettings) -> int:
    """Return how many models and statistics a recipe fits on the corpus."""
    lists = bool(settings.ingest.against) + bool(settings.ingest.decontaminate)
    lists += reads_targets([settings.selection.solver])
    return sum(map(is_trained, settings.quality.scorers)) + 1 + (settings.embedding.model == STATIC) + lists


def _stage(inspection: Inspection, stage: str) -> StageStatus:
    workspace, settings = inspection.workspace, inspection.settings
    files = [
        (job, file)
        for job, file in inspection.jobs[stage]
        if file is not None and not job.stage.interim and not isinstance(job, PartJob)
    ]
    seconds = sum(recorded_seconds(job, workspace) for job, _ in files)
    about = stages_shown_as(stage)
    stale = 0
    if stage == "fit":
        wanted = fits(settings)
        done = len(files)
    elif stage == "materialize":
        wanted, done = 1, len(files)
        stale = int(not files and Output.of(workspace, settings.materialize).is_there)
    elif stage == "export":
        wanted, done = len(settings.materialize.export), len(files)
    elif stage == "report":
        wanted, done = 1, len(files)
        stale = int(not files and workspace.exists(workspace.reports))
    else:
        wanted, done = len(inspection.shards), len({name for job, _ in files for name in job.shard_names})
        if stage == DedupJob.stage.name:  # what is made of single shards and of buckets is a part of one product
            files = [(job, file) for job, file in files if isinstance(job, DedupJob | NearDedupJob)]
            wanted, done = (settings.ingest.exact_dedup == "corpus") + (settings.ingest.near_dedup != "off"), len(files)
        reached = {workspace.relative(path) for job, _ in inspection.jobs[stage] for path in job.paths()}
        folders = {folder for one in about if not one.interim for folder in one.folders}
        stale = sum(path not in reached for folder in folders for path in workspace.sizes(folder))
    rows = sum(file.rows for _, file in files)
    return StageStatus(
        stage=stage,
        done=done,
        missing=wanted - done,
        stale=stale,
        rows=rows,
        bytes=sum(file.bytes for _, file in files),
        seconds=round(seconds, 3),
        documents_per_second=round(rows / seconds, 1) if rows and seconds else None,
    )


def finished_run(settings: PipelineSettings) -> RunSummary | None:
    """Run the pipeline if that means to build nothing: every output of the recipe is there and current.

    It leaves what every run leaves: its record, the recipe as that of the last run, and the catalog.

    Returns
    -------
    RunSummary | None
        None if there is a job to do, or was never a run; nothing is done then.
    """
    workspace = workspace_of(settings)
    if not workspace.exists(LastRun.path(workspace)):
        return None
    shards = check_inputs(settings)
    with workspace.in_use(), disk_errors_explained(workspace.root, "the record of the run"), not_shown():
        listing = Listing.of(workspace)
        scheduler = Scheduler(workspace, quarantine=False, at_once=1, listing=listing, starts=False)
        plan = Plan(scheduler, workspace, settings, shards, PretrainedModels.of(settings), listing=listing)
        try:
            plan.run_all()
        except NotFinishedError:
            return None
        with recorded(scheduler, settings, "curate") as record:
            describe(record, plan)
            with workspace.alone():
                LastRun(settings=settings, folder=str(Path.cwd())).save(workspace)
            update_index(workspace)
        if workspace.url is None:
            update_catalog(workspace, scheduler, plan, keep=True)
        return summarize(scheduler, plan)


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
    if not workspace.exists(LastRun.path(workspace)):
        raise CatalogError(
            f"{folder} is no workspace in which a run was begun: first `fineweb-mask run RECIPE --workspace {folder}`"
        )
    try:
        with workspace.in_use(), workspace.alone():
            from fineweb_mask.tasks.catalog.views import write_catalog  # DuckDB

            write_catalog(workspace, inspect_workspace(folder).plan.catalog_files())
    except (StatusError, WorkspaceError, OSError) as error:
        raise CatalogError(str(error)) from error
