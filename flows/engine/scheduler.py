"""Schedule jobs on Prefect, later stages first, and collect the run's statistics."""

from collections.abc import Callable, Sequence
from functools import partial
from heapq import heappop, heappush
from itertools import count
from queue import SimpleQueue
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from fineweb_mask.flows.display import events
from fineweb_mask.flows.display.listeners import listener
from fineweb_mask.flows.processes.signals import raise_if_interrupted
from fineweb_mask.flows.summary import StageSummary
from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.models.runtime.progress import reporting_to
from fineweb_mask.tasks.registry import ALL_STAGES, STAGES, TASKS, documents_through
from fineweb_mask.tasks.reporting.sections import StageTime
from fineweb_mask.tasks.workspace.job import (
    BadShardError,
    StageJob,
    executed_by,
    record_seconds,
    recorded_seconds,
)
from fineweb_mask.tasks.workspace.listing import Listing
from fineweb_mask.tasks.workspace.references import StageFile
from fineweb_mask.tasks.workspace.workspace import Workspace

if TYPE_CHECKING:
    from prefect.futures import PrefectFuture

    from fineweb_mask.flows.engine.cluster import Cluster

OnDone = Callable[[StageFile | None], None]
"""Called with a job's output, or with None if its shard was quarantined."""


class MissingInputError(WorkspaceError):
    """A stage is run by itself, and its inputs do not exist."""


class NotFinishedError(Exception):
    """A run that was only to be looked at has a job to do; no message for a person."""


class Jobs(Protocol):
    """Takes the jobs of a plan: runs them, or only checks which of them are done."""

    quarantined: dict[str, str]
    """In which stage each bad shard was left out, and why."""
    at_once: int
    """Jobs that run at the same time on one machine."""

    def expect(self, stage: str, jobs: int) -> None:
        """Announce `jobs` more jobs of a stage; a negative number withdraws some."""

    def add(self, job: StageJob, on_done: OnDone) -> None:
        """Take a job; `on_done` is called with its output, at once or later."""

    def done(self, job: StageJob) -> StageFile | None:
        """Return a job's output if it is current and is not built again, else None."""

    def finish(self) -> None:
        """Return when all jobs that were added are done."""

    def times(self) -> list[StageTime]:
        """Return how long each stage took."""


def add_all(jobs: Jobs, group: Sequence[StageJob], on_all: Callable[[list[StageFile]], None]) -> None:
    """Add jobs, and call `on_all` with their outputs, in the order of the jobs, when all are there."""
    found: dict[int, StageFile] = {}

    def collect(index: int) -> OnDone:
        def on_done(file: StageFile | None) -> None:
            if file is not None:
                found[index] = file
                if len(found) == len(group):
                    on_all([found[place] for place in range(len(group))])

        return on_done

    for index, job in enumerate(group):
        jobs.expect(job.stage.shown_as, 1)
        jobs.add(job, collect(index))


class _Waiting(NamedTuple):
    """A job that is not submitted yet, in the order in which jobs are submitted."""

    place: int  # later stages first
    number: int
    job: StageJob
    on_done: OnDone


class _Submitted(NamedTuple):
    """A Prefect task run, of one job or of a group of them."""

    jobs: list[_Waiting]
    future: "PrefectFuture[Any]"


class Scheduler:
    """Submits jobs to Prefect, a few at a time; the `Jobs` of a run.

    Parameters
    ----------
    workspace
        The workspace of the run.
    quarantine
        Whether a bad shard is left out; otherwise it ends the run.
    at_once
        Jobs that run at the same time without a cluster. Those of later stages go first, so that a shard is finished
        before the next is begun.
    refresh
        Stages whose outputs are built again although they are current.
    scope
        Names of the stages that are run; None runs all. The outputs of other stages must exist.
    listing
        The stage files that were there when the run began. Without it, a file is opened to see whether it is current.
    cluster
        Runs the jobs; None runs them in threads of this process.
    group
        Most jobs of a stage in one Prefect task run, if there is a cluster: the jobs run at the same time, and Prefect
        shows and retries them together.
    starts
        Whether jobs are run. Otherwise Prefect is not needed, and a job whose output is not current ends the run.
    """

    def __init__(
        self,
        workspace: Workspace,
        *,
        quarantine: bool,
        at_once: int,
        refresh: frozenset[str] = frozenset(),
        scope: frozenset[str] | None = None,
        listing: Listing | None = None,
        cluster: "Cluster | None" = None,
        group: int = 1,
        starts: bool = True,
    ) -> None:
        self.workspace = workspace
        self.stages: dict[str, StageSummary] = {}
        self.quarantined: dict[str, str] = {}
        self.missing: dict[str, list[str]] = {}
        self._quarantine = quarantine
        self._cluster = cluster
        self._group = group
        self._starts = starts
        self.at_once = at_once if cluster is None else cluster.per_node
        self._refresh = refresh
        self._scope = scope
        self._listing = listing
        self._order = count()
        self._waiting: list[_Waiting] = []  # a heap
        self._in_flight = 0  # jobs
        self._submitted: dict[int, _Submitted] = {}
        self._done: SimpleQueue[tuple[int, float]] = SimpleQueue()
        self._times: dict[str, StageTime] = {}
        self._busy: list[tuple[float, float]] = []  # from when to when each job ran

    def expect(self, stage: str, jobs: int) -> None:
        """Announce `jobs` more jobs of a stage to the listener; a negative number withdraws some."""
        if self._scope is None or any(TASKS[name].stage.shown_as == stage for name in self._scope):
            listener.get().on_stage(stage, jobs)

    def add(self, job: StageJob, on_done: OnDone) -> None:
        """Take a job: one whose output is current is done at once; one that is out of scope must be current.

        Raises
        ------
        NotFinishedError
            If it is not current, and jobs are not run.
        """
        stage = job.stage
        in_scope = self._scope is None or stage.name in self._scope
        is_rebuilt = in_scope and self._is_rebuilt(job)
        if not is_rebuilt and (file := job.current(self._listing)) is not None:
            if in_scope:
                self._end(job, file)
            else:
                self._count(job, file)
            on_done(file)
            return
        if not in_scope:
            self.missing.setdefault(stage.shown_as, []).append(job.name)
            if stage.name == "ingest" and self._scope == frozenset({"report"}):
                on_done(None)  # it was quarantined, or is newer than the dataset that is reported on
            return
        if not self._starts:
            raise NotFinishedError(f"{stage.name} {job.name} is not done")
        if self._is_rebuilt(job):
            job = job.model_copy(update={"force": True})
        heappush(self._waiting, _Waiting(-ALL_STAGES.index(stage.shown_as), next(self._order), job, on_done))

    def done(self, job: StageJob) -> StageFile | None:
        """Return a job's output if it is current and is not built again, else None."""
        return None if self._is_rebuilt(job) else job.current(self._listing)

    def _is_rebuilt(self, job: StageJob) -> bool:
        return job.force or not self._refresh.isdisjoint({job.stage.name, job.stage.shown_as})

    def finish(self, at_once: int | None = None) -> None:
        """Run jobs until none is left; a job's `on_done` may add others.

        Parameters
        ----------
        at_once
            Most jobs at the same time, if not as many as usual: 1 for jobs that are timed.

        Raises
        ------
        Exception
            Raised by a job, unless it is a bad shard and those are quarantined.
        KeyboardInterrupt
            If the command was interrupted, and what was running then did not end it.
        """
        while self._waiting or self._submitted:
            raise_if_interrupted()
            most = at_once or (self.at_once if self._cluster is None else self._cluster.in_flight(self._group))
            while self._waiting and self._in_flight < most:
                jobs = self._next(most - self._in_flight)
                self._in_flight += len(jobs)
                future = self._submit([waiting.job for waiting in jobs])
                self._submitted[jobs[0].number] = _Submitted(jobs, future)
                future.add_done_callback(partial(self._finished, jobs[0].number))
            number, ended = self._done.get()
            jobs, future = self._submitted.pop(number)
            self._in_flight -= len(jobs)
            for waiting, answer in zip(jobs, self._answers(jobs, future), strict=True):
                file = self._result(waiting.job, answer)
                if file is not None:
                    self._busy.append((ended - file.seconds, ended))
                waiting.on_done(file)

    def wait(self) -> None:
        """Return when no job runs any more, whatever became of it."""
        for submitted in self._submitted.values():
            submitted.future.wait()

    def _next(self, most: int) -> list[_Waiting]:
        """Take the next job off the heap, and others of its stage if they are submitted in groups."""
        jobs = [heappop(self._waiting)]
        stage = jobs[0].job.stage
        while (
            len(jobs) < min(most, self._group)
            and stage.per_shard
            and self._waiting
            and self._waiting[0].job.stage is stage
        ):
            jobs.append(heappop(self._waiting))
        return jobs

    def run_one(self, job: StageJob) -> StageFile:
        """Run one job by itself and return its output."""
        outputs: list[StageFile | None] = []
        self.expect(job.stage.shown_as, 1)
        self.add(job, outputs.append)
        self.finish()
        [file] = outputs
        if file is None:
            raise MissingInputError(f"{job.stage.name} {job.name} was not built: run the whole pipeline")
        return file

    @property
    def busy_seconds(self) -> float:
        """Seconds in which at least one job ran; the rest of a run's time is orchestration."""
        busy, until = 0.0, float("-inf")
        for start, end in sorted(self._busy):
            busy += max(0.0, end - max(start, until))
            until = max(until, end)
        return round(busy, 3)

    @property
    def in_order(self) -> list[StageSummary]:
        """Files and seconds of every stage that ran, in the order of the stages."""
        return [self.stages[stage] for stage in ALL_STAGES if stage in self.stages]

    def times(self) -> list[StageTime]:
        """Return how long the files of every stage took to build, by this run or an earlier one."""
        return [self._times[stage] for stage in STAGES if stage in self._times]

    def _count(self, job: StageJob, file: StageFile) -> None:
        stage = job.stage.shown_as
        time = self._times.setdefault(stage, StageTime(stage=stage, files=0))
        time.files += 1
        time.cached += file.cached
        time.seconds = round(time.seconds + file.seconds, 3)
        seconds = recorded_seconds(job, self.workspace) if file.cached else file.seconds
        time.built_seconds = round(time.built_seconds + seconds, 3)
        if (through := documents_through(file)) is not None:
            time.documents = (time.documents or 0) + through[0]

    def _finished(self, number: int, _future: "PrefectFuture[Any]") -> None:
        self._done.put((number, perf_counter()))

    def _submit(self, jobs: list[StageJob]) -> "PrefectFuture[Any]":
        stage = jobs[0].stage
        task = TASKS[stage.name]
        report = partial(listener.get().on_job_progress, stage.shown_as, jobs[0].name)
        with reporting_to(report), executed_by(self._cluster):  # a task copies this context
            if len(jobs) == 1:
                return task.task.submit(job=jobs[0])
            from prefect.utilities.annotations import quote

            return task.group.submit(jobs=quote(jobs), first=jobs[0].name, last=jobs[-1].name)

    @staticmethod
    def _answers(jobs: list[_Waiting], future: "PrefectFuture[Any]") -> list[Any]:
        """Return the output or the error of every job of a task run."""
        found = future.result(raise_on_failure=False)
        return [found] * len(jobs) if len(jobs) == 1 or isinstance(found, BaseException) else found

    def _result(self, job: StageJob, file: StageFile | BaseException) -> StageFile | None:
        stage = job.stage.shown_as
        if isinstance(file, BadShardError) and self._quarantine and job.stage.per_shard:
            self.stages.setdefault(stage, StageSummary(stage=stage)).files += 1
            self.quarantined[job.name] = reason = f"{stage}: {file}"
            listener.get().on_job_end(stage, job.name, None)
            events.quarantined(job.name, reason)
            return None
        if isinstance(file, BaseException):
            raise file
        self._end(job, file)
        if not file.cached:
            record_seconds(job, self._times[stage].built_seconds if job.stage.gathers else file.seconds)
        return file

    def _end(self, job: StageJob, file: StageFile) -> None:
        """Enter a job's output in the run's statistics, and show it."""
        stage = job.stage.shown_as
        summary = self.stages.setdefault(stage, StageSummary(stage=stage))
        summary.files += 1
        summary.cached += file.cached
        summary.seconds = round(summary.seconds + file.seconds, 3)
        self._count(job, file)
        listener.get().on_job_end(stage, job.name, file)
