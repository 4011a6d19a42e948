"""Show a person the progress of a run: bars on a terminal, log lines elsewhere."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from fineweb_mask.flows.display.terminal import logs_made_visible
from fineweb_mask.flows.processes import temporary_server
from fineweb_mask.models.runtime.progress import Step
from fineweb_mask.tasks.workspace.references import StageFile

if TYPE_CHECKING:
    import logging

LOG_SECONDS = 30.0
"""Time between two log lines on the progress of one job."""

CACHED_LINES = 20
"""Files of a stage that were there before, and have a log line each."""

CACHED_FILES = 1_000
"""After those, files for one line."""


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


class Bars:
    """Draw a bar for each stage, and below it one for each active loop of its jobs."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._bars: dict[str, TaskID] = {}
        self._jobs: Counter[str] = Counter()  # by stage
        self._loops: dict[tuple[str, str], dict[str, TaskID]] = {}  # of each running job: bars by loop
        self._lock = Lock()

    def on_stage(self, stage: str, jobs: int) -> None:
        """Draw the bar of a stage, or make it longer."""
        self._jobs[stage] += jobs
        if stage in self._bars:
            self._progress.update(self._bars[stage], total=self._jobs[stage])
        else:
            self._bars[stage] = self._progress.add_task(stage.replace("_", " "), total=jobs)

    def on_job_progress(self, stage: str, job: str, share: float, steps: tuple[Step, ...]) -> None:  # noqa: ARG002
        """Draw the bars of a job's loops."""
        with self._lock:
            shown = self._loops.setdefault((stage, job), {})
            for what in shown.keys() - {step.what for step in steps}:
                self._progress.remove_task(shown.pop(what))
            for depth, step in enumerate(steps, start=1):
                if step.what in shown:
                    self._progress.update(shown[step.what], completed=step.done, total=step.total)
                else:
                    shown[step.what] = self._progress.add_task(
                        "  " * depth + step.what, completed=step.done, total=step.total
                    )

    def on_job_end(self, stage: str, job: str, file: StageFile | None) -> None:  # noqa: ARG002
        """Remove the bars of the job's loops, and advance the bar of its stage."""
        with self._lock:
            for bar in self._loops.pop((stage, job), {}).values():
                self._progress.remove_task(bar)
        self._progress.advance(self._bars[stage])


listener: ContextVar[Listener] = ContextVar("listener", default=LogLines())  # noqa: B039 - it holds nothing but running jobs


@contextmanager
def shown_as_bars(console: Console) -> Iterator[None]:
    """Draw bars on a console while the block runs."""
    columns = (TextColumn("{task.description:<22}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        token = listener.set(Bars(progress))
        try:
            yield
        finally:
            listener.reset(token)


@contextmanager
def prefect_shown(console: Console | None, *, verbose: bool = False) -> Iterator[None]:
    """Show the flow that runs in the block, by bars on a console or by log lines: of task runs, too, if `verbose`."""
    from prefect import flow  # noqa: F401 - its logs are then there to be narrowed
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

    # Without heartbeats a flow run is a second shorter.
    with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        temporary_server.install()
        logs_made_visible(verbose=verbose)
        with nullcontext() if console is None else shown_as_bars(console):
            yield
