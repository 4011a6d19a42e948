"""Run jobs: return the outputs that are current, and have Prefect build the others.

`Run.map` and `Run.all` are how every stage of every flow is run. They look a stage's jobs up in the workspace, show
the current ones, submit the others a few at a time, quarantine bad shards, and return when all are done.
"""

from collections import defaultdict, deque
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from queue import SimpleQueue
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from fineweb_mask.flows.display import events
from fineweb_mask.flows.display.listeners import listener
from fineweb_mask.flows.pipeline.choices import Share
from fineweb_mask.flows.processes.signals import raise_if_interrupted
from fineweb_mask.flows.summary import StageSummary
from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.models.runtime.progress import reporting_to
from fineweb_mask.models.settings import PipelineSettings
from fineweb_mask.tasks.fit.job import sampled_shards
from fineweb_mask.tasks.registry import STAGES, documents_through
from fineweb_mask.tasks.reporting.sections import StageTime
from fineweb_mask.tasks.source.discovery import SourceShard
from fineweb_mask.tasks.workspace.job import (
    BadShardError,
    GroupJob,
    StageJob,
    StageTask,
    record_seconds,
    recorded_seconds,
)
from fineweb_mask.tasks.workspace.listing import Listing
from fineweb_mask.tasks.workspace.references import StageFile
from fineweb_mask.tasks.workspace.workspace import Workspace

if TYPE_CHECKING:
    from prefect.futures import PrefectFuture

    from fineweb_mask.flows.display.prefect_ui import UiListener
    from fineweb_mask.flows.pipeline.fit import PretrainedModels
    from fineweb_mask.flows.pipeline.task_runs import TaskRuns

MOST_SHOWN = 500
"""Current jobs of a stage that are a Prefect task run each; more of them are one task run together."""

T = TypeVar("T")


class PerShard(dict[str, T]):
    """A value for each shard, by the shard's name, in the order of the source."""


Files = PerShard[StageFile]
"""The files that a stage made, by shard; a shard that is quarantined has none."""


class MissingInputError(WorkspaceError):
    """A stage is run by itself, and its inputs do not exist."""


class UnfinishedError(Exception):
    """A job is not done, in a run that builds nothing; no message for a person."""


class _Submitted(NamedTuple):
    """A Prefect task run of one job, or of several; each with its place among the jobs of its stage."""

    jobs: list[tuple[int, StageJob]]
    future: "PrefectFuture[Any]"


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
    refresh
        Names of the stages whose outputs are built again although they are current.
    scope
        Names of the stages that are run; None runs all. The outputs of other stages must exist.
    share
        The shards that this run prepares; None prepares all.
    task_runs
        Submits jobs to Prefect. None builds nothing: a job that is not done ends the run with `UnfinishedError`.
    ui
        Publishes what the run did in the Prefect UI.
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
        refresh: Collection[str] = (),
        scope: Collection[str] | None = None,
        share: Share | None = None,
        task_runs: "TaskRuns | None" = None,
        ui: "UiListener | None" = None,
    ) -> None:
        self.workspace = workspace
        self.root = workspace.address
        self.settings = settings
        self.shards = PerShard({shard.name: shard for shard in shards})
        self.models = models
        self.listing = listing
        self.refit = frozenset(refit)
        self.sample = sampled_shards(workspace, list(self.shards), refit=self.refit)  # names of shards to fit on
        self.quarantined: dict[str, str] = {}  # in which stage each bad shard failed, and why
        self.found: dict[str, list[tuple[StageJob, StageFile | None]]] = defaultdict(
            list
        )  # by what stages are shown as
        self.duplicates: Files = PerShard()  # of every shard, when they are known
        self.ui = ui
        self._refresh = frozenset(refresh)
        self._scope = None if scope is None else frozenset(scope)
        self._share = share
        self._task_runs = task_runs
        self._stages: dict[str, StageSummary] = {}
        self._times: dict[str, StageTime] = {}
        self._busy: list[tuple[float, float]] = []  # from when to when each job ran
        self._submitted: dict[int, _Submitted] = {}

    @property
    def at_once(self) -> int:
        """Jobs that run at the same time on one machine."""
        return 1 if self._task_runs is None else self._task_runs.per_machine

    @property
    def to_ingest(self) -> PerShard[SourceShard]:
        """The shards of this run's share, and of the sample that models are fitted on."""
        own = self.own(self.shards)
        sample = set(self.sample)
        return PerShard({name: shard for name, shard in self.shards.items() if name in own or name in sample})

    def own(self, files: PerShard[T]) -> PerShard[T]:
        """Return what is of this run's share of the shards."""
        if self._share is None:
            return files
        own = set(list(self.shards)[self._share.number - 1 :: self._share.of])
        return PerShard({name: value for name, value in files.items() if name in own})

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

    def map(self, task: StageTask, **inputs: Any) -> Files:  # noqa: ANN401 - fields of a job
        """Run a stage's job for every shard, and return the output of each.

        A shard that the job finds bad is quarantined: it is not in what is returned, and so in no later stage.

        Parameters
        ----------
        task
            The stage.
        inputs
            Fields of its jobs: a `PerShard` gives each job the value of its own shard.

        Raises
        ------
        Exception
            Raised by a job, unless it is a bad shard and those are quarantined.
        KeyboardInterrupt
            If the command was interrupted.
        """
        return self.each(self.jobs(task, **inputs))

    def each(self, jobs: PerShard[Any]) -> Files:
        """Run a job for every shard, as `map` does."""
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
        MissingInputError
            If one is of a stage that this run does not run, and is not done.
        """
        outputs = self._run(jobs, at_once)
        for job, file in zip(jobs, outputs, strict=True):
            if file is None:
                before = next(iter(job.stage.run_with), job.stage.name)
                raise MissingInputError(f"{job.kind} {job.name} is not done: run {before} first, or the whole pipeline")
        return [file for file in outputs if file is not None]

    def one(self, job: StageJob) -> StageFile:
        """Run one job, and return its output."""
        [file] = self.all([job])
        return file

    def done(self, job: StageJob) -> StageFile | None:
        """Return a job's output if it is current and is not built again, else None."""
        return None if self._is_rebuilt(job) else job.current(self.listing)

    def files_of(self, job: GroupJob) -> Files:
        """Return the files of a finished job, by shard; they may be newer than the listing."""
        return PerShard({file.name: file for file in job.shard_files(self.listing) or job.shard_files() or []})

    def require_all(self, files: PerShard[Any], first: str) -> None:
        """Check that no shard's file is missing, if this run does not make them itself.

        Without a scope, shards that have none are quarantined. A report alone is written without them, too.

        Parameters
        ----------
        files
            The files that are there.
        first
            The stage that makes the others.

        Raises
        ------
        MissingInputError
            If one is missing.
        """
        if self._scope is None or self._scope == {"report"}:
            return
        if names := [name for name in self.shards if name not in files]:
            some = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
            raise MissingInputError(
                f"{len(names)} shards lack what {first} makes ({some}): run {first} first, or the whole pipeline"
            )

    def wait(self) -> None:
        """Return when no job runs any more, whatever became of it."""
        for submitted in self._submitted.values():
            submitted.future.wait()

    @property
    def busy_seconds(self) -> float:
        """Seconds in which at least one job ran; the rest of a run's time is orchestration."""
        busy, until = 0.0, float("-inf")
        for start, end in sorted(self._busy):
            busy += max(0.0, end - max(start, until))
            until = max(until, end)
        return round(busy, 3)

    @property
    def stages(self) -> list[StageSummary]:
        """Files and seconds of every stage that ran, in the order of the stages."""
        places = {stage: place for place, stage in enumerate(STAGES)}
        return sorted(self._stages.values(), key=lambda summary: places.get(summary.stage, len(places)))

    @property
    def times(self) -> list[StageTime]:
        """How long the files of every stage took to build, in this run or an earlier one."""
        return [self._times[stage] for stage in STAGES if stage in self._times]

    def _run(self, jobs: Sequence[StageJob], at_once: int | None = None) -> list[StageFile | None]:
        """Return the output of every job of a stage, None for a quarantined shard or a missing input."""
        if not jobs:
            return []
        stage = jobs[0].stage
        if self._scope is not None and stage.name not in self._scope:
            outputs = [job.current(self.listing) for job in jobs]
            for job, file in zip(jobs, outputs, strict=True):
                if file is not None:
                    self._count_time(job, file)
        else:
            listener.get().on_stage(stage.shown_as, len(jobs))
            outputs = [self.done(job) for job in jobs]
            current = [(job, file) for job, file in zip(jobs, outputs, strict=True) if file is not None]
            for job, file in current:
                self._end(job, file)
            if self._task_runs is not None:
                self._task_runs.show_current(current, MOST_SHOWN)
            places = [place for place, file in enumerate(outputs) if file is None]
            for place, answer in self._built([(place, jobs[place]) for place in places], at_once):
                outputs[place] = self._result(jobs[place], answer)
        self.found[stage.shown_as] += zip(jobs, outputs, strict=True)
        return outputs

    def _built(
        self, jobs: Sequence[tuple[int, StageJob]], at_once: int | None
    ) -> Iterator[tuple[int, StageFile | BaseException]]:
        """Build the outputs of jobs, a few at a time; yield each job's place, and output or error, as it ends."""
        if jobs and self._task_runs is None:
            raise UnfinishedError(f"{jobs[0][1].stage.name} {jobs[0][1].name} is not done")
        task_runs = self._task_runs
        waiting, ended = deque(jobs), SimpleQueue[tuple[int, float]]()
        in_flight = 0
        while waiting or self._submitted:
            assert task_runs is not None  # noqa: S101 - checked above
            raise_if_interrupted()
            most = at_once or task_runs.in_flight
            while waiting and in_flight < most:
                taken = min(task_runs.jobs_in_one(waiting[0][1].stage), most - in_flight, len(waiting))
                batch = [waiting.popleft() for _ in range(taken)]
                in_flight += len(batch)
                again = [job.model_copy(update={"force": True}) if self._is_rebuilt(job) else job for _, job in batch]
                report = partial(listener.get().on_job_progress, batch[0][1].stage.shown_as, batch[0][1].name)
                with reporting_to(report):  # a task copies this context
                    future = task_runs.submit(again)
                self._submitted[batch[0][0]] = _Submitted(batch, future)
                future.add_done_callback(partial(_note_end, ended, batch[0][0]))
            number, at = ended.get()
            batch, future = self._submitted.pop(number)
            in_flight -= len(batch)
            for (place, _), answer in zip(batch, task_runs.answers([job for _, job in batch], future), strict=True):
                if isinstance(answer, StageFile):
                    self._busy.append((at - answer.seconds, at))
                yield place, answer

    def _is_rebuilt(self, job: StageJob) -> bool:
        return job.force or not self._refresh.isdisjoint({job.stage.name, job.stage.shown_as})

    def _result(self, job: StageJob, answer: StageFile | BaseException) -> StageFile | None:
        stage = job.stage.shown_as
        is_quarantined = self.settings.ingest.on_bad_shard == "quarantine" and job.stage.per_shard
        if isinstance(answer, BadShardError) and is_quarantined:
            self._summary_of(stage).files += 1
            self.quarantined[job.name] = reason = f"{stage}: {answer}"
            listener.get().on_job_end(stage, job.name, None)
            if self._task_runs is not None:
                events.quarantined(job.name, reason)
            return None
        if isinstance(answer, BaseException):
            raise answer
        self._end(job, answer)
        if not answer.cached:
            record_seconds(job, self._times[stage].built_seconds if job.stage.gathers else answer.seconds)
        return answer

    def _summary_of(self, stage: str) -> StageSummary:
        return self._stages.setdefault(stage, StageSummary(stage=stage))

    def _end(self, job: StageJob, file: StageFile) -> None:
        """Enter a job's output in the run's statistics, and show it."""
        stage = job.stage.shown_as
        summary = self._summary_of(stage)
        summary.files += 1
        summary.cached += file.cached
        summary.seconds = round(summary.seconds + file.seconds, 3)
        self._count_time(job, file)
        listener.get().on_job_end(stage, job.name, file)

    def _count_time(self, job: StageJob, file: StageFile) -> None:
        stage = job.stage.shown_as
        time = self._times.setdefault(stage, StageTime(stage=stage, files=0))
        time.files += 1
        time.cached += file.cached
        time.seconds = round(time.seconds + file.seconds, 3)
        seconds = recorded_seconds(job, self.workspace) if file.cached else file.seconds
        time.built_seconds = round(time.built_seconds + seconds, 3)
        if (through := documents_through(file)) is not None:
            time.documents = (time.documents or 0) + through[0]


def _note_end(ended: "SimpleQueue[tuple[int, float]]", number: int, _future: "PrefectFuture[Any]") -> None:
    ended.put((number, perf_counter()))
