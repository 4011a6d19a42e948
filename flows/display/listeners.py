"""Show a person the progress of a run: bars on a terminal, a few lines in a pipe, every step where it is logged."""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from importlib import import_module
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.text import Text

from fineweb_mask.flows.display.terminal import logs_made_visible
from fineweb_mask.flows.processes import temporary_server
from fineweb_mask.models.runtime.progress import Step
from fineweb_mask.tasks.workspace.references import StageFile

if TYPE_CHECKING:
    import logging
    from uuid import UUID

LOG_SECONDS = 30.0
"""Time between two log lines on the progress of one job."""

CACHED_LINES = 20
"""Files of a stage that were there before, and have a log line each."""

CACHED_FILES = 1_000
"""After those, files for one line."""

FIRST_LINE = 60.0
"""Seconds after which a run that nobody watches says how far it is; each further line takes twice as long."""

LISTED_JOBS = 4
"""Maximum number of running jobs whose progress is shown."""

DOCUMENTS = "documents"
"""What a job's loop over its documents is called."""


class Listener(Protocol):
    """Callbacks of the scheduler: what the jobs of a run do."""

    def on_stage(self, stage: str, jobs: int) -> None:
        """Handle the announcement of `jobs` more jobs of a stage; a negative number withdraws some."""

    def on_job_progress(self, stage: str, job: str, share: float, steps: tuple[Step, ...]) -> None:
        """Handle the progress of a running job; called in the thread that runs it.

        Parameters
        ----------
        stage, job
            Names of the stage and of the job.
        share
            Completed share of the job, 0 to 1, as far as it is known.
        steps
            The active loops, outermost first; empty if unknown.
        """

    def on_job_end(self, stage: str, job: str, file: StageFile | None) -> None:
        """Handle the end of a job: its output, or None if its shard was quarantined."""


def _logger() -> "logging.Logger | logging.LoggerAdapter[logging.Logger]":
    """Return the logger of the flow run; Prefect is imported here, because a plan that is only looked at needs none."""
    from prefect.logging import get_run_logger

    return get_run_logger()


class LogLines:
    """Log a line when a job ends, and every `LOG_SECONDS` one on its progress, in the log of the flow run."""

    def __init__(self) -> None:
        self._due: dict[tuple[str, str], float] = {}  # of each running job: time of its next line
        self._cached: Counter[str] = Counter()  # files by stage

    def on_stage(self, stage: str, jobs: int) -> None:
        """Log the number of jobs."""
        if jobs > 0:
            _logger().info("%s: %d to do", stage, jobs)

    def on_job_progress(self, stage: str, job: str, share: float, steps: tuple[Step, ...]) -> None:  # noqa: ARG002
        """Log the active loops, if a line is due."""
        now = monotonic()
        if steps and now >= self._due.setdefault((stage, job), now + LOG_SECONDS):
            self._due[stage, job] = now + LOG_SECONDS
            _logger().info("%s: %s, %s", stage, job, ", ".join(map(str, steps)))

    def on_job_end(self, stage: str, job: str, file: StageFile | None) -> None:
        """Log what the job wrote, and how fast; of a stage's files that were there before, only the first ones."""
        self._due.pop((stage, job), None)
        if file is None:
            return
        if file.cached:
            self._cached[stage] += 1
            if self._cached[stage] > CACHED_LINES:
                if self._cached[stage] % CACHED_FILES == 0:
                    _logger().info("%s: %d files cached", stage, self._cached[stage])
                return
        rate = f", {file.rows / file.seconds:,.0f} rows/s" if file.rows and file.seconds else ""
        state = "cached" if file.cached else f"{file.seconds:.1f} s{rate}"
        _logger().info("%s: %s, %d rows, %s", stage, file.name, file.rows, state)


@dataclass
class StageProgress:
    """Progress of a stage."""

    stage: str
    jobs: int = 0
    done: int = 0
    built: int = 0
    quarantined: int = 0
    documents: int = 0
    documents_built: int = 0
    since: float = math.inf  # when building the first file began
    until: float = 0.0
    shares: dict[str, float] = field(default_factory=dict)  # completed share of each running job, 0 to 1
    steps: dict[str, tuple[Step, ...]] = field(default_factory=dict)  # active loops of each running job
    artifact: "UUID | None" = None
    changed: bool = True

    def report(self, job: str, share: float, steps: tuple[Step, ...]) -> None:
        """Note how far a running job is."""
        self.shares[job], self.steps[job] = share, steps

    def end(self, job: str, file: StageFile | None) -> None:
        """Count a job that has ended; None if its shard was quarantined."""
        self.shares.pop(job, None)
        self.steps.pop(job, None)
        self.count(file)

    def count(self, file: StageFile | None) -> None:
        """Count what a job that has ended made."""
        from fineweb_mask.tasks.registry import documents_through

        self.done += 1
        self.until = monotonic()
        if file is None:
            self.quarantined += 1
        else:
            documents, _ = documents_through(file) or (0, 0)
            self.documents += documents
            if not file.cached:
                self.since = min(self.since, self.until - file.seconds)
                self.built += 1
                self.documents_built += documents

    @property
    def percent(self) -> float:
        """Completed share of all jobs, running ones included, in percent."""
        return round(100 * (self.done + sum(self.shares.values())) / max(self.jobs, 1), 1)

    @property
    def own_steps(self) -> list[Step]:
        """How many of its documents each running job has read."""
        return [steps[0] for steps in self.steps.values() if steps and steps[0].what == DOCUMENTS]

    def amount(self) -> str:
        """Return in a few words what is done: documents, where the stage reads any, else jobs."""
        running = self.own_steps
        seen = self.documents + sum(step.done for step in running)
        if not seen:
            return f"{self.done:,} of {self.jobs:,}"
        if self.done + len(running) < self.jobs:
            return f"{seen:,} documents, {self.done:,} of {self.jobs:,} files"
        return f"{seen:,} of {self.documents + sum(step.total for step in running):,} documents"

    def rate(self, since: float) -> str:
        """Return the documents of each second since a time, without those that were there before."""
        seen = self.documents_built + sum(step.done for step in self.own_steps)
        return f"{seen / max(monotonic() - since, 1e-3):,.0f}/s" if seen else ""

    def describe(self) -> str:
        """Return one line: jobs, documents, documents per second, time left, loops of the running jobs."""
        seconds, running = max(self.until - self.since, 1e-3), sum(self.shares.values())
        parts = [f"{self.done:,} of {self.jobs:,} done"]
        if cached := self.done - self.built - self.quarantined:
            parts.append(f"{cached:,} cached")
        if self.quarantined:
            parts.append(f"{self.quarantined:,} quarantined")
        if self.documents:
            parts.append(f"{self.documents:,} documents")
        if self.documents_built:
            parts.append(f"{self.documents_built / seconds:,.0f} documents/s")
        if self.built and self.done < self.jobs:
            taken = (
                monotonic() - self.since if self.shares else seconds
            )  # by jobs that run longer than those before, too
            left = taken * (self.jobs - self.done - running) / (self.built + running)
            parts.append(f"about {_duration(left)} left")
        loops = [", ".join(map(str, steps)) for steps in self.steps.values() if steps]
        parts += loops[:LISTED_JOBS] + (["..."] if len(loops) > LISTED_JOBS else [])
        return ", ".join(parts)


class SparseLines(LogLines):
    """Log as `LogLines`, and say how far the stage is after 1, 2, 4, 8 and so on minutes: where nobody watches."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__()
        self._say, self._started, self._next = say, monotonic(), FIRST_LINE
        self._stages: dict[str, StageProgress] = {}
        self._lock = Lock()

    def on_stage(self, stage: str, jobs: int) -> None:
        """Count the jobs."""
        super().on_stage(stage, jobs)
        with self._lock:
            self._stages.setdefault(stage, StageProgress(stage)).jobs += jobs

    def on_job_progress(self, stage: str, job: str, share: float, steps: tuple[Step, ...]) -> None:
        """Say how far the job's stage is, if it is time."""
        super().on_job_progress(stage, job, share, steps)
        with self._lock:
            self._stages[stage].report(job, share, steps)
            self._tell(stage)

    def on_job_end(self, stage: str, job: str, file: StageFile | None) -> None:
        """Say how far the job's stage is, if it is time."""
        super().on_job_end(stage, job, file)
        with self._lock:
            self._stages[stage].end(job, file)
            self._tell(stage)

    def _tell(self, stage: str) -> None:
        seconds = monotonic() - self._started
        if seconds >= self._next:
            self._next = 2 * seconds
            self._say(f"{_duration(seconds)}: {stage}, {self._stages[stage].describe()}")


class Bars:
    """Draw a bar for each stage, with its documents and their rate, and below it one for each loop of its jobs."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._waiting: TaskID | None = progress.add_task("starting", total=None, amount="", rate="")
        self._bars: dict[str, TaskID] = {}
        self._stages: dict[str, StageProgress] = {}
        self._since: dict[str, float] = {}  # by stage, when its bar was drawn
        self._loops: dict[tuple[str, str], dict[str, TaskID]] = {}  # of each running job: bars by loop
        self._lock = Lock()

    def on_stage(self, stage: str, jobs: int) -> None:
        """Draw the bar of a stage, or make it longer."""
        with self._lock:
            if self._waiting is not None:
                self._progress.remove_task(self._waiting)
                self._waiting = None
            if stage not in self._bars:
                self._stages[stage], self._since[stage] = StageProgress(stage), monotonic()
                self._bars[stage] = self._progress.add_task(stage.replace("_", " "), total=jobs, amount="", rate="")
            self._stages[stage].jobs += jobs
            self._draw(stage)

    def on_job_progress(self, stage: str, job: str, share: float, steps: tuple[Step, ...]) -> None:
        """Draw the bars of a job's loops; that of its documents is the stage's own."""
        with self._lock:
            self._stages[stage].report(job, share, steps)
            self._draw(stage)
            shown = self._loops.setdefault((stage, job), {})
            below = [step for step in steps if step.what != DOCUMENTS]
            for what in shown.keys() - {step.what for step in below}:
                self._progress.remove_task(shown.pop(what))
            for depth, step in enumerate(below, start=1):
                at: dict[str, Any] = {"completed": step.done, "total": step.total}
                at |= {"amount": f"{step.done:,} of {step.total:,}"}
                if step.what in shown:
                    self._progress.update(shown[step.what], **at)
                else:
                    shown[step.what] = self._progress.add_task("  " * depth + step.what, **at, rate="")

    def on_job_end(self, stage: str, job: str, file: StageFile | None) -> None:
        """Remove the bars of the job's loops, and advance the bar of its stage."""
        with self._lock:
            for bar in self._loops.pop((stage, job), {}).values():
                self._progress.remove_task(bar)
            self._stages[stage].end(job, file)
            self._draw(stage)

    def _draw(self, stage: str) -> None:
        of = self._stages[stage]
        done, rate = of.done + sum(of.shares.values()), of.rate(self._since[stage])
        self._progress.update(self._bars[stage], completed=done, total=of.jobs, amount=of.amount(), rate=rate)


listener: ContextVar[Listener] = ContextVar("listener", default=LogLines())  # noqa: B039 - it holds nothing but running jobs


class _Time(ProgressColumn):
    """Show the time that is left, or what was taken where that is not known yet, or nothing is left."""

    def render(self, task: Task) -> Text:
        """Return the time of a bar."""
        if task.finished or not task.time_remaining:
            return Text(_duration((task.finished_time if task.finished else task.elapsed) or 0.0))
        return Text(f"{_duration(task.time_remaining)} left", "cyan")


@contextmanager
def shown_as_bars(console: Console) -> Iterator[None]:
    """Draw bars on a console while the block runs."""
    columns = (
        TextColumn("{task.description:<14}"),
        BarColumn(bar_width=None),
        TextColumn("{task.fields[amount]}", justify="right"),
        TextColumn("{task.fields[rate]}", justify="right"),
        _Time(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        token = listener.set(Bars(progress))
        try:
            yield
        finally:
            listener.reset(token)


@contextmanager
def shown_as_lines(say: Callable[[str], None]) -> Iterator[None]:
    """Say now and then how far a run is, while the block runs."""
    token = listener.set(SparseLines(say))
    try:
        yield
    finally:
        listener.reset(token)


@contextmanager
def prefect_shown(*, verbose: bool = False) -> Iterator[None]:
    """Have what Prefect logs in the block shown: every step if `verbose`, else warnings alone, in our own words."""
    from prefect import flow  # noqa: F401 - its logs are then there to be narrowed
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

    from fineweb_mask.flows.processes.prefect_api import check_server

    # Without heartbeats a flow run is a second shorter.
    with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        check_server()
        import_module("fineweb_mask.flows.pipeline.start")  # takes as long as the server, which starts meanwhile
        with temporary_server.used():
            logs_made_visible(verbose=verbose)
            yield


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours:,} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
