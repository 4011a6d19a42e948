"""Runs jobs as soon as they are known, later stages first, and keeps the books of one run."""

import json
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from itertools import count
from queue import SimpleQueue
from time import perf_counter
from typing import Any, Literal, NamedTuple, Protocol

from prefect import Task
from prefect.futures import PrefectFuture

from fineweb_mask.flows.display import events
from fineweb_mask.flows.display.listeners import listener
from fineweb_mask.flows.summary import StageSummary
from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.models.runtime.progress import reporting_to
from fineweb_mask.tasks import dedup, embed, fit, ingest, materialize, report, score, score_embed, select
from fineweb_mask.tasks.reporting.sections import StageTime
from fineweb_mask.tasks.selection import compare_page, contenders, frontier, sweep_page
from fineweb_mask.tasks.workspace.counts import documents_through
from fineweb_mask.tasks.workspace.job import BadShardError, StageJob
from fineweb_mask.tasks.workspace.workspace import StageFile, Workspace

OnDone = Callable[[StageFile | None], None]
"""Hears of a job's output, or of None if its shard was set aside."""

PipelineStage = Literal["ingest", "dedup", "fit", "score", "embed", "score_embed", "select", "materialize", "report"]
STAGES: tuple[PipelineStage, ...] = PipelineStage.__args__  # type: ignore[attr-defined]
"""In the order in which a document passes through them."""

Stage = PipelineStage | Literal["scale", "frontier", "contend", "sweep", "compare"]
ALL_STAGES: tuple[Stage, ...] = (*STAGES, "scale", "frontier", "contend", "sweep", "compare")
"""The pipeline's, then those of the pages that look at many selections."""

Refreshed = Literal["ingest", "dedup", "score", "embed", "score_embed", "select", "materialize", "report"]
REFRESHED: tuple[Refreshed, ...] = Refreshed.__args__  # type: ignore[attr-defined]
"""Stages that can be run again although their files are current; what is fitted has a word of its own, `refit`."""

PER_SHARD: frozenset[Stage] = frozenset({"ingest", "score", "embed", "score_embed"})
"""Stages in which a bad shard can be set aside while the others go on."""

TASKS: dict[str, Task[..., StageFile]] = {
    "ingest": ingest.ingest_task,
    "dedup": dedup.dedup_task,
    "fit_classifier": fit.fit_classifier_task,
    "fit_statistics": fit.fit_statistics_task,
    "fit_encoder": fit.fit_encoder_task,
    "score": score.score_task,
    "embed": embed.embed_task,
    "score_embed": score_embed.score_embed_task,
    "select": select.select_task,
    "materialize": materialize.materialize_task,
    "report": report.report_task,
    "scale": contenders.find_scale_task,
    "frontier": frontier.frontier_task,
    "contend": contenders.selector_task,
    "sweep": sweep_page.sweep_task,
    "compare": compare_page.compare_task,
}
"""By the stage in a job's key."""


def label_of(key_stage: str) -> str:
    """Return the stage that a job is counted under, given the one in its key."""
    return "fit" if key_stage.startswith("fit_") else key_stage


def recorded_seconds(workspace: Workspace, job: StageJob) -> float:
    """Return what building a file took, from the record that Prefect persisted; 0 without one."""
    try:
        record = json.loads((workspace.cache / job.key.cache_key).read_text())
        return float(json.loads(record["result"])["data"]["seconds"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0.0


class MissingInputError(WorkspaceError):
    """A stage was to be run by itself, and what it reads is not there."""


class Jobs(Protocol):
    """Is given the jobs of a pipeline as they become known."""

    def expect(self, stage: Stage, jobs: int) -> None:
        """Hear how many more jobs a stage will have (fewer, if negative)."""

    def add(self, stage: Stage, job: StageJob, then: OnDone) -> None:
        """Take a job; `then` hears of its output."""


class _Started(NamedTuple):
    stage: Stage
    job: StageJob
    then: OnDone
    future: PrefectFuture[StageFile]


class Run:
    """Submits jobs to Prefect, a few at a time.

    Parameters
    ----------
    workspace
        Where the results that Prefect persists lie.
    quarantine
        Whether a bad shard is set aside; otherwise it ends the run.
    at_once
        Jobs that are submitted at the same time; those of later stages go first, so that a shard is finished before the
        next is begun.
    refresh
        Stages whose jobs are done again although their output is current.
    scope
        Stages, by the name in a job's key, that are run; None runs all. The output of others must be there.
    """

    def __init__(
        self,
        workspace: Workspace,
        *,
        quarantine: bool,
        at_once: int,
        refresh: frozenset[str] = frozenset(),
        scope: frozenset[str] | None = None,
    ) -> None:
        self.workspace = workspace
        self.stages: dict[str, StageSummary] = {}
        self.quarantined: dict[str, str] = {}
        self.missing: dict[str, list[str]] = {}
        self._quarantine = quarantine
        self._at_once = at_once
        self._refresh = refresh
        self._scope = scope
        self._order = count()
        self._waiting: list[tuple[int, int, Stage, StageJob, OnDone]] = []  # a heap
        self._started: dict[int, _Started] = {}
        self._done: SimpleQueue[tuple[int, float]] = SimpleQueue()
        self._times: dict[str, StageTime] = {}
        self._busy: list[tuple[float, float]] = []  # from when to when each job was at work

    def expect(self, stage: Stage, jobs: int) -> None:
        """Tell who watches how many jobs a stage has."""
        if self._scope is None or stage in {label_of(name) for name in self._scope}:
            listener.get().started(stage, jobs)

    def add(self, stage: Stage, job: StageJob, then: OnDone) -> None:
        """Take a job; one that is out of scope must have been done before."""
        if self._scope is not None and job.key.stage not in self._scope:
            if (file := job.current()) is not None:
                self._count(stage, job, file)
                then(file)
                return
            self.missing.setdefault(stage, []).append(job.name)
            if stage == "ingest" and self._scope == {"report"}:
                then(None)  # it was set aside, or came after the dataset that is reported on
            return
        heappush(self._waiting, (-ALL_STAGES.index(stage), next(self._order), stage, job, then))

    def work(self, at_once: int | None = None) -> None:
        """Run jobs until none is left; they may add others when they are done.

        Parameters
        ----------
        at_once
            Most jobs at the same time, if not as many as usual: 1 for jobs whose times are compared.

        Raises
        ------
        Exception
            What a job raised, unless it is a bad shard and those are set aside.
        """
        while self._waiting or self._started:
            while self._waiting and len(self._started) < (at_once or self._at_once):
                _, number, stage, job, then = heappop(self._waiting)
                future = self._submit(stage, job)
                self._started[number] = _Started(stage, job, then, future)
                future.add_done_callback(partial(self._finished, number))
            number, ended = self._done.get()
            done = self._started.pop(number)
            listener.get().left(done.stage, done.job.name)
            file = self._result(done)
            if file is not None:
                self._busy.append((ended - file.seconds, ended))
            done.then(file)

    def one(self, stage: Stage, job: StageJob) -> StageFile:
        """Run one job by itself and return its output."""
        outputs: list[StageFile | None] = []
        self.expect(stage, 1)
        self.add(stage, job, outputs.append)
        self.work()
        [file] = outputs
        if file is None:
            raise MissingInputError(f"{job.name} was not made")
        return file

    @property
    def busy_seconds(self) -> float:
        """Seconds in which at least one job was at work; the rest of a run's time is orchestration."""
        busy, until = 0.0, float("-inf")
        for start, end in sorted(self._busy):
            busy += max(0.0, end - max(start, until))
            until = max(until, end)
        return round(busy, 3)

    @property
    def in_order(self) -> list[StageSummary]:
        """What was spent, in the order of the stages."""
        return [self.stages[stage] for stage in ALL_STAGES if stage in self.stages]

    @property
    def times(self) -> list[StageTime]:
        """What the files of every stage took, in the order of the stages, whichever run made them."""
        return [self._times[stage] for stage in STAGES if stage in self._times]

    def _count(self, stage: Stage, job: StageJob, file: StageFile) -> None:
        time = self._times.setdefault(stage, StageTime(stage=stage, files=0))
        time.files += 1
        time.cached += file.cached
        time.seconds = round(time.seconds + file.seconds, 3)
        built = recorded_seconds(self.workspace, job) if file.cached else file.seconds
        time.built_seconds = round(time.built_seconds + built, 3)
        if (through := documents_through(file)) is not None:
            time.documents = (time.documents or 0) + through[0]

    def _finished(self, number: int, _future: PrefectFuture[Any]) -> None:
        self._done.put((number, perf_counter()))

    def _submit(self, stage: Stage, job: StageJob) -> PrefectFuture[StageFile]:
        """Submit a job; a cached result whose file is no longer whole is not used."""
        force = job.key.stage in self._refresh
        if force:
            job = job.model_copy(update={"force": True})
        task = TASKS[job.key.stage].with_options(
            refresh_cache=force or job.current() is None, result_storage=self.workspace.cache
        )
        with reporting_to(partial(listener.get().at_work, stage, job.name)):  # a task runs in a copy of this context
            return task.submit(job=job)

    def _result(self, done: _Started) -> StageFile | None:
        file = done.future.result(raise_on_failure=False)
        summary = self.stages.setdefault(done.stage, StageSummary(stage=done.stage))
        summary.files += 1
        if isinstance(file, BadShardError) and self._quarantine and done.stage in PER_SHARD:
            self.quarantined[done.job.name] = str(file)
            listener.get().finished(done.stage, None)
            events.quarantined(done.job.name, str(file))
            return None
        if isinstance(file, BaseException):
            raise file
        if done.future.state.name == "Cached" or file.cached:
            file = file.model_copy(update={"cached": True, "seconds": 0.0})
        self._count(done.stage, done.job, file)
        summary.cached += file.cached
        summary.seconds = round(summary.seconds + file.seconds, 3)
        listener.get().finished(done.stage, file)
        return file
