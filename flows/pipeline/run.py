"""Run jobs: return the outputs that are current, and have Prefect build the others.

`Run.map` and `Run.all` are how every stage of every flow is run. They look a stage's jobs up in the workspace, show
the current ones, have the others built, quarantine bad shards, and return when all are done.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

from fineweb_mask.flows.summary import StageSummary
from fineweb_mask.models.settings import PipelineSettings
from fineweb_mask.tasks.dataset.output import Output
from fineweb_mask.tasks.fit import sampled_shards
from fineweb_mask.tasks.registry import STAGES
from fineweb_mask.tasks.source.discovery import SourceShard
from fineweb_mask.tasks.workspace.job import (
    BadShardError,
    StageJob,
    StageTask,
    record_seconds,
    recorded_seconds,
)
from fineweb_mask.tasks.workspace.listing import Listing
from fineweb_mask.tasks.workspace.references import NO_FILE, StageFile
from fineweb_mask.tasks.workspace.workspace import Workspace

if TYPE_CHECKING:
    from fineweb_mask.flows.display.prefect_ui import PrefectUi
    from fineweb_mask.flows.pipeline.fit import PretrainedModels
    from fineweb_mask.flows.pipeline.task_runs import TaskRuns
    from fineweb_mask.tasks.source.inventory import Inventory

T = TypeVar("T")


class PerShard(dict[str, T]):
    """A value for each shard, by the shard's name, in the order of the source."""


Files = PerShard[StageFile]
"""The files that a stage made, by shard; a shard that is quarantined has none."""


class UnfinishedError(Exception):
    """A job is not done, in a run that only looks; no message for a person."""


class ReachedError(Exception):
    """The stage is done that the run stops after; its text is the name of the stage."""


class Share(NamedTuple):
    """One of several equal shares of the shards, for machines that fill one workspace together."""

    number: int  # from 1
    of: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a share such as `2/8`.

        Raises
        ------
        ValueError
            If it is none.

        Examples
        --------
        >>> Share.parse("2/8")
        Share(number=2, of=8)
        """
        number, slash, of = text.partition("/")
        if slash and number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of):
            return cls(int(number), int(of))
        raise ValueError(f"a share is I/N, such as 2/8 for the second of eight, received {text!r}")

    def others(self, shards: list[str]) -> frozenset[str]:
        """Return the shards that are of other shares."""
        return frozenset(shards).difference(shards[self.number - 1 :: self.of])


class Run:
    """One run of a flow over the shards of a source.

    Parameters
    ----------
    workspace, settings
        The workspace of the corpus, and the recipe.
    shards
        The source's files.
    models
        The models that the settings name.
    listing
        The stage files that were there when the run began. Without it, a file is opened to see whether it is current.
    refit
        Names of the stages whose models are fitted again.
    until
        The stage that the run stops after; None: none.
    share
        The shards that this run works on; those of others are as their runs left them. None: all.
    task_runs
        Submits jobs to Prefect. None builds nothing: a job that is not done ends the run with `UnfinishedError`.
    ui
        Shows what the jobs do, and publishes it in the Prefect UI. None shows nothing.
    source
        What the source holds. None where it is not looked at.
    """

    remembers = True
    """Whether the order in which shards came is written down for later runs."""

    def __init__(
        self,
        workspace: Workspace,
        settings: PipelineSettings,
        shards: Sequence[SourceShard],
        models: "PretrainedModels",
        *,
        listing: Listing | None = None,
        refit: Collection[str] = (),
        until: str | None = None,
        share: Share | None = None,
        task_runs: "TaskRuns | None" = None,
        ui: "PrefectUi | None" = None,
        source: "Inventory | None" = None,
    ) -> None:
        self.workspace = workspace
        self.root = workspace.address
        self.settings = settings
        self.shards = PerShard({shard.name: shard for shard in shards})
        self.models = models
        self.listing = listing
        self.output = Output.of(workspace, settings.materialize)  # where the dataset is written
        self.refit = frozenset(refit)
        self.sample = sampled_shards(workspace, list(self.shards), refit=self.refit)  # names of shards to fit on
        self.quarantined: dict[str, str] = {}  # in which stage each bad shard failed, and why
        # By what stages are shown as: their jobs, and what was made.
        self.found: dict[str, list[tuple[StageJob, StageFile | None]]] = defaultdict(list)
        self.duplicates: Files = PerShard()  # of every shard, when they are known
        self.losses = NO_FILE  # what every step drops by group, when it is known
        self.ui = ui
        self.source = source
        self._until = until
        self.is_share = share is not None
        self._others = frozenset() if share is None else share.others(list(self.shards))
        self.task_runs = task_runs
        self._stages: dict[str, StageSummary] = {}
        self._built_seconds: dict[str, float] = defaultdict(float)  # by stage, of all runs that wrote its files

    @cached_property
    def recorded_seconds(self) -> dict[str, float]:
        """How long the jobs of earlier runs took, by the fingerprints of their keys."""
        return recorded_seconds(self.workspace)

    def jobs(self, task: StageTask, **inputs: Any) -> PerShard[Any]:  # noqa: ANN401 - fields of a job
        """Return the job of every shard that all inputs `PerShard` have; other inputs are the same for all."""
        each = {key: value for key, value in inputs.items() if isinstance(value, PerShard)}
        same = {key: value for key, value in inputs.items() if key not in each}
        first, *others = each.values()
        return PerShard(
            {
                name: task.job_type(root=self.root, **same, **{key: value[name] for key, value in each.items()})
                for name in first
                if all(name in other for other in others)
            }
        )

    def map(self, task: StageTask | PerShard[Any], **inputs: Any) -> Files:  # noqa: ANN401 - fields of a job
        """Run a stage's job for every shard, and return the output of each.

        A shard that the job finds bad is quarantined: it is not in what is returned, and so in no later stage.

        Parameters
        ----------
        task
            The stage, or the job of every shard.
        inputs
            Fields of the stage's jobs: a `PerShard` gives each job the value of its own shard.

        Raises
        ------
        Exception
            Raised by a job, unless it is a bad shard and those are quarantined.
        KeyboardInterrupt
            If the command was interrupted.
        """
        jobs = self.jobs(task, **inputs) if isinstance(task, StageTask) else task
        outputs = self._run(list(jobs.values()))
        return PerShard({name: file for name, file in zip(jobs, outputs, strict=True) if file is not None})

    def all(self, jobs: Sequence[StageJob], *, at_once: int | None = None) -> list[StageFile]:
        """Run some jobs of one stage, and return the output of each.

        Parameters
        ----------
        jobs
            The jobs.
        at_once
            Most jobs at the same time, if not as many as usual: 1 for jobs that are timed.

        Raises
        ------
        BadShardError
            If one found its shard bad: what these jobs make is of all shards together.
        """
        return [self._required(job, file) for job, file in zip(jobs, self._run(jobs, at_once), strict=True)]

    def one(self, job: StageJob) -> StageFile:
        """Run one job, and return its output."""
        return self._required(job, *self._run([job]))

    def _required(self, job: StageJob, file: StageFile | None) -> StageFile:
        if file is None:
            raise BadShardError(f"{self.quarantined[job.name]}: remove the file from the source, and run again")
        return file

    def done(self, job: StageJob) -> StageFile | None:
        """Return a job's output if it is current and is not built again, else None."""
        return None if job.force else job.current(self.listing)

    def files_of(self, job: StageJob) -> Files:
        """Return the files of a finished job, by shard; they may be newer than the listing."""
        return PerShard({file.name: file for file in job.shard_files(self.listing) or job.shard_files() or []})

    def reached(self, stage: str) -> None:
        """End the run if this is the stage that it stops after.

        Raises
        ------
        ReachedError
            If it is.
        """
        if stage == self._until:
            raise ReachedError(stage)

    def require_all(self, files: PerShard[Any]) -> None:
        """Check in a run that only looks that every shard has come, for it is not known what others will bring."""

    @property
    def stages(self) -> list[StageSummary]:
        """Files and seconds of every stage that ran, in the order of the stages."""
        places = {stage: place for place, stage in enumerate(STAGES)}
        return sorted(self._stages.values(), key=lambda summary: places.get(summary.stage, len(places)))

    def _run(self, jobs: Sequence[StageJob], at_once: int | None = None) -> list[StageFile | None]:
        """Return the output of every job of a stage, None for a quarantined shard."""
        if not jobs:
            return []
        outputs = [self.done(job) for job in jobs]
        current = [(job, file) for job, file in zip(jobs, outputs, strict=True) if file is not None]
        if self.ui is not None:
            self.ui.on_stage(jobs[0].stage.shown_as, len(jobs), len(current))
        for job, file in current:
            self._end(job, file)
        missing = [
            (place, job)
            for place, job in enumerate(jobs)
            if outputs[place] is None and not self._is_left_to_others(job)
        ]
        if self.task_runs is not None:
            self.task_runs.show_current(current)
            for place, answer in self.task_runs.built(missing, at_once):
                outputs[place] = self._result(jobs[place], answer)
        elif missing:
            raise UnfinishedError
        self.found[jobs[0].stage.shown_as] += zip(jobs, outputs, strict=True)
        return outputs

    def _is_left_to_others(self, job: StageJob) -> bool:
        """Return whether a run of another share does a job; what is compared are the documents of all shards."""
        return job.name in self._others and (self._until == "ingest" or job.stage.shown_as in {"score", "embed"})

    def _result(self, job: StageJob, answer: StageFile | BaseException) -> StageFile | None:
        stage = job.stage.shown_as
        is_quarantined = self.settings.ingest.on_bad_shard == "quarantine" and job.stage.per_shard
        if isinstance(answer, BadShardError) and is_quarantined:
            self._summary_of(stage).files += 1
            self.quarantined[job.name] = reason = f"{stage}: {answer}"
            if self.ui is not None:
                self.ui.on_quarantined(stage, job.name, reason)
            return None
        if isinstance(answer, BaseException):
            raise answer
        self._end(job, answer)
        if not answer.cached:
            record_seconds(job, self._built_seconds[stage] if job.stage.gathers else answer.seconds)
        return answer

    def _summary_of(self, stage: str) -> StageSummary:
        return self._stages.setdefault(stage, StageSummary(stage=stage))

    def _end(self, job: StageJob, file: StageFile) -> None:
        """Enter a job's output in the statistics, and show it."""
        stage = job.stage.shown_as
        seconds = self.recorded_seconds.get(job.key.fingerprint, 0.0) if file.cached else file.seconds
        self._built_seconds[stage] += seconds
        summary = self._summary_of(stage)
        summary.files += 1
        summary.cached += file.cached
        summary.seconds = round(summary.seconds + file.seconds, 3)
        if self.ui is not None:
            self.ui.on_job_end(stage, job.name, file)
