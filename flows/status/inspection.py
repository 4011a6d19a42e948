"""Look at what a workspace holds of every stage, from its files alone; end a run that has nothing to do.

The stages are those of `flows/curate.py`, over a run that builds nothing. Nothing here needs Prefect.
"""

import logging
from collections.abc import Container, Sequence
from contextlib import chdir, suppress
from functools import cached_property
from pathlib import Path

from pydantic import BaseModel, ValidationError

from fineweb_mask.flows.curate import pipeline
from fineweb_mask.flows.pipeline.fit import number_of_fits
from fineweb_mask.flows.pipeline.inputs import doubts, find_inputs
from fineweb_mask.flows.pipeline.records import recorded, summarize
from fineweb_mask.flows.pipeline.run import PerShard, Run, UnfinishedError
from fineweb_mask.flows.summary import RunSummary
from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.models.settings import PipelineSettings
from fineweb_mask.models.urls import reject_credentials, require_writable
from fineweb_mask.tasks.dedup.duplicates import DedupJob
from fineweb_mask.tasks.embed import EmbedJob
from fineweb_mask.tasks.registry import PIPELINE, STAGES
from fineweb_mask.tasks.score import ScoreJob
from fineweb_mask.tasks.source.inventory import take_inventory
from fineweb_mask.tasks.storage.atomic import disk_errors_explained
from fineweb_mask.tasks.workspace.job import BadShardError, StageJob
from fineweb_mask.tasks.workspace.listing import Listing
from fineweb_mask.tasks.workspace.records.runs import LastRun, QuarantinedShard, run_records
from fineweb_mask.tasks.workspace.references import StageFile
from fineweb_mask.tasks.workspace.workspace import Workspace

logger = logging.getLogger(__name__)

BEFORE_SELECTION = ("source", "ingest", "quality", "embedding")
"""Sections of a recipe by which it is decided whether a shard can be used."""


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
    quarantined: list[QuarantinedShard]  # by the last finished run; the next tries them again


class _Look(Run):
    """A run that only looks which jobs are done."""

    remembers = False

    @cached_property
    def _set_aside(self) -> dict[str, str]:
        """The shards that the last finished run of these documents, scores and vectors set aside, and why."""
        for record in run_records(self.workspace):
            if record.flow == "curate" and record.status in {"done", "quarantined"}:
                with suppress(ValueError):
                    theirs = record.settings(self.settings.workspace)
                    if all(getattr(theirs, one) == getattr(self.settings, one) for one in BEFORE_SELECTION):
                        return {shard.shard: shard.reason for shard in record.set_aside}
        return {}

    def _run(self, jobs: Sequence[StageJob], at_once: int | None = None) -> list[StageFile | None]:  # noqa: ARG002
        outputs = []
        for job in jobs:
            file = job.current(self.listing)
            self.found[job.stage.shown_as].append((job, file))
            if file is None and job.stage.per_shard and job.name in self._set_aside:
                self.quarantined[job.name] = self._set_aside[job.name]
            elif file is None and isinstance(job, ScoreJob | EmbedJob):
                # A lost file would be built again with the same bytes: what was made of it is valid.
                file = job.reference(job.documents.rows - job.duplicates.rows).model_copy(update={"path": ""})
            outputs.append(file)
        return outputs

    def _required(self, job: StageJob, file: StageFile | None) -> StageFile:  # noqa: ARG002
        if file is None:
            raise UnfinishedError
        return file

    def require_all(self, files: PerShard[object]) -> None:
        if self.shards.keys() - files.keys() - self.quarantined.keys():
            raise UnfinishedError


def open_workspace(folder: str | Path) -> Workspace:
    """Return a workspace in which a run was started, as it is now.

    Raises
    ------
    StatusError
        If the folder is none.
    """
    try:
        workspace = Workspace(require_writable(reject_credentials(str(folder))))
        is_started = workspace.is_started
    except (OSError, ValueError) as error:
        raise StatusError(str(error)) from error
    if not is_started:
        raise StatusError(f"{folder} is no workspace: no run was started there: it has no run.json")
    return workspace


def last_run(folder: str | Path) -> tuple[Workspace, LastRun, Path]:
    """Return a workspace, the recipe of its last run, and the folder that relative paths in the recipe start from.

    Raises
    ------
    StatusError
        If the folder is not a workspace, or the folder that the run was started from is gone.
    """
    workspace = open_workspace(folder)
    try:
        last = LastRun.load(workspace)
    except ValidationError as error:
        raise StatusError(f"{folder} is no workspace: no run was started there: it has no readable run.json") from error
    except (OSError, ValueError) as error:
        raise StatusError(str(error)) from error
    start = Path(last.folder)
    if not start.is_dir() and workspace.url is None:
        raise StatusError(
            f"{folder}: the folder {last.folder}, from which its last run was started, is gone: run its recipe "
            "again from another"
        )
    return workspace, last, start if start.is_dir() else Path.cwd()  # the run was another machine's


def inspect_workspace(folder: str | Path) -> Run:
    """Return a run that has looked at the jobs of every stage, under the recipe of the workspace's last run.

    Raises
    ------
    StatusError
        If the folder is no workspace, or its source or models are out of reach.
    """
    workspace, last, start = last_run(folder)
    with chdir(start):
        try:
            return inspect_recipe(workspace, last.settings)
        except (OSError, ValueError, ImportError) as error:
            raise StatusError(f"{folder}: what its last run read is out of reach: {error}") from error


def inspect_recipe(workspace: Workspace, settings: PipelineSettings, only: Container[str] | None = None) -> Run:
    """Return a run that has looked at the jobs of every stage, as far as they are known, under a recipe.

    `only` are the source's files that it reads, by their names in the source; None reads all.

    Raises
    ------
    OSError, ValueError, ImportError
        If the source or a model of the recipe is out of reach.
    """
    _, shards, models, _ = find_inputs(settings)
    shards = [shard for shard in shards if only is None or shard.relative in only]
    run = _Look(workspace, settings, shards, models, listing=Listing(workspace))
    with suppress(UnfinishedError, BadShardError):
        pipeline(run)
    return run


def status_of(found: Run) -> WorkspaceStatus:
    """Return the state of the stages that take part in the recipe that was looked at, in their order."""
    stages = [stage for stage in STAGES if stage != "export" or found.settings.materialize.export]
    return WorkspaceStatus(
        workspace=found.workspace.display_path(found.workspace.root),
        shards=len(found.shards),
        stages=[_stage(found, stage) for stage in stages],
        quarantined=[QuarantinedShard(shard=shard, reason=reason) for shard, reason in found.quarantined.items()],
    )


def _stage(run: Run, stage: str) -> StageStatus:
    workspace, settings, ingest = run.workspace, run.settings, run.settings.ingest
    files = [(job, file) for job, file in run.found[stage] if file is not None and not job.stage.interim]
    seconds = sum(run.recorded_seconds.get(job.key.fingerprint, 0.0) for job, _ in files)
    if stage == DedupJob.stage.name:  # what is made of single shards is a part of one product
        files = [(job, file) for job, file in files if isinstance(job, DedupJob)]
    of_corpus = {  # files that a run makes of all shards together
        "fit": number_of_fits(settings),
        DedupJob.stage.name: int(ingest.compares_shards),
        "materialize": 1,
        "export": len(settings.materialize.export),
        "report": 2,  # with what the selection teaches
    }
    names = {name for job, _ in files for name in job.shard_names}
    done = len(files) if stage in of_corpus else len(names)
    wanted = of_corpus.get(stage, len(names | (run.shards.keys() - run.quarantined.keys())))
    stale = 0
    if stage == "materialize":
        stale = int(not files and run.output.whole() is not None)
    elif stage == "report":
        stale = int(not files and bool(workspace.sizes("reports", suffix="")))
    elif stage not in {"fit", "export"}:
        reached = {workspace.relative(path) for job, _ in run.found[stage] for path in job.paths()}
        shown = [task.stage for task in PIPELINE if task.stage.shown_as == stage and not task.stage.interim]
        folders = {folder for one in shown for folder in one.folders}
        stale = sum(path not in reached for folder in folders for path in workspace.sizes(folder))
    rows = sum(file.rows for job, file in files if job.shard_names or stage in of_corpus)  # of each document once
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
    workspace = Workspace(settings.workspace)
    if not workspace.is_started:
        return None
    inputs = find_inputs(settings)
    inventory = take_inventory(inputs.source, settings.source)
    with workspace.in_use(), disk_errors_explained(workspace.root, "the record of the run"):
        run = Run(workspace, settings, inputs.shards, inputs.models, listing=Listing(workspace), source=inventory)
        try:
            made = pipeline(run)
        except UnfinishedError:
            return None
        for line in doubts(inputs, settings, inventory):
            logger.warning("%s", line)
        with recorded(run, "curate"), workspace.alone():
            LastRun(settings=settings, folder=str(Path.cwd()), source=inventory.model_dump()).save(workspace)
        return summarize(run, *made)
