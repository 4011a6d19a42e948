"""What a person sees while a run goes on: bars on a terminal, plain log lines elsewhere."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from time import monotonic
from typing import Protocol

from prefect.logging import get_run_logger
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from fineweb_mask.models.runtime.progress import Step
from fineweb_mask.tasks.workspace.references import StageFile

LOG_SECONDS = 30.0
"""Between two log lines on how far a job is."""


class Listener(Protocol):
    """Is told how a run goes on."""

    def started(self, stage: str, jobs: int) -> None:
        """Hear how many jobs a stage has."""

    def finished(self, stage: str, file: StageFile | None) -> None:
        """Hear that one of its jobs is done, or has failed (None)."""

    def at_work(self, stage: str, job: str, share: float, steps: tuple[Step, ...]) -> None:
        """Hear how far a job is, from the thread that works on it.

        Parameters
        ----------
        stage, job
            Which job it is.
        share
            What share of it is done, 0 to 1, as far as that is known.
        steps
            The loops that it is in, the outermost first; none where that is not known.
        """

    def left(self, stage: str, job: str) -> None:
        """Hear that nobody works on a job any more; `finished` says what came of it."""


class LogLines:
    """One line per finished job, in the flow run's own log, and now and then one on a job that takes long."""

    def __init__(self) -> None:
        self._due: dict[tuple[str, str], float] = {}  # of the jobs at work, when the next line is due

    def started(self, stage: str, jobs: int) -> None:
        """Log how much there is to do."""
        if jobs > 0:
            get_run_logger().info("%s: %d to do", stage, jobs)

    def finished(self, stage: str, file: StageFile | None) -> None:
        """Log what was done."""
        if file is not None:
            rate = f", {file.rows / file.seconds:,.0f} rows/s" if file.rows and file.seconds else ""
            state = "already there" if file.cached else f"{file.seconds:.1f} s{rate}"
            get_run_logger().info("%s: %s, %d rows, %s", stage, file.name, file.rows, state)

    def at_work(self, stage: str, job: str, share: float, steps: tuple[Step, ...]) -> None:  # noqa: ARG002
        """Log how far a job is, unless that was done a short while ago."""
        now = monotonic()
        if steps and now >= self._due.setdefault((stage, job), now + LOG_SECONDS):
            self._due[stage, job] = now + LOG_SECONDS
            get_run_logger().info("%s: %s, %s", stage, job, ", ".join(map(str, steps)))

    def left(self, stage: str, job: str) -> None:
        """Forget when the next line is due."""
        self._due.pop((stage, job), None)


class Bars:
    """One bar per stage on a terminal, and below them one for each loop that takes long."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._bars: dict[str, TaskID] = {}
        self._loops: dict[tuple[str, str], dict[str, TaskID]] = {}  # of the jobs at work, by what the steps are
        self._lock = Lock()

    def started(self, stage: str, jobs: int) -> None:
        """Draw a stage's bar."""
        if stage in self._bars:
            bar = self._bars[stage]
            self._progress.update(bar, total=(self._progress.tasks[bar].total or 0) + jobs)
        else:
            self._bars[stage] = self._progress.add_task(stage.replace("_", " "), total=jobs)

    def finished(self, stage: str, file: StageFile | None) -> None:  # noqa: ARG002
        """Move a stage's bar on."""
        self._progress.advance(self._bars[stage])

    def at_work(self, stage: str, job: str, share: float, steps: tuple[Step, ...]) -> None:  # noqa: ARG002
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

    def left(self, stage: str, job: str) -> None:
        """Take away the bars of a job's loops."""
        with self._lock:
            for bar in self._loops.pop((stage, job), {}).values():
                self._progress.remove_task(bar)


listener: ContextVar[Listener] = ContextVar("listener", default=LogLines())  # noqa: B039 - what it holds belongs to the jobs at work


@contextmanager
def shown_as_bars(console: Console) -> Iterator[None]:
    """Show bars on a console while the block runs."""
    columns = (TextColumn("{task.description:<22}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        token = listener.set(Bars(progress))
        try:
            yield
        finally:
            listener.reset(token)
