"""What a person sees while a run goes on: bars on a terminal, plain log lines elsewhere."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from prefect.logging import get_run_logger
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from tasks.lake import StageFile


class Listener(Protocol):
    """Is told how a run goes on."""

    def started(self, stage: str, jobs: int) -> None:
        """Hear how many jobs a stage has."""

    def finished(self, stage: str, file: StageFile | None) -> None:
        """Hear that one of its jobs is done, or has failed (None)."""


class LogLines:
    """One line per finished job, in the flow run's own log."""

    def started(self, stage: str, jobs: int) -> None:
        """Log how much there is to do."""
        if jobs > 0:
            get_run_logger().info("%s: %d to do", stage, jobs)

    def finished(self, stage: str, file: StageFile | None) -> None:
        """Log what was done."""
        if file is not None:
            rate = f", {file.rows / file.seconds:,.0f} rows/s" if file.rows and file.seconds else ""
            state = "already there" if file.reused else f"{file.seconds:.1f} s{rate}"
            get_run_logger().info("%s: %s, %d rows, %s", stage, file.name, file.rows, state)


class Bars:
    """One bar per stage on a terminal."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._bars: dict[str, TaskID] = {}

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


listener: ContextVar[Listener] = ContextVar("listener", default=LogLines())  # noqa: B039 - it holds no state


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
