"""Show a person how far a run is: bars on a terminal, in a pipe a line now and then."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from importlib import import_module
from time import monotonic
from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, TextColumn

from fineweb_mask.flows.display.terminal import SafeConsole, echo, logs_made_visible
from fineweb_mask.models.runtime.progress import Step
from fineweb_mask.tasks.workspace.references import StageFile

if TYPE_CHECKING:
    from uuid import UUID

FIRST_LINE = 60.0
"""Seconds after which a run that nobody watches says how far it is; each further line takes twice as long."""

LISTED_JOBS = 4
"""Maximum number of running jobs whose progress is shown in a line."""


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
        """Count a job that has ended, and what it made; None if its shard was quarantined."""
        from fineweb_mask.tasks.registry import DOCUMENTS

        self.shares.pop(job, None)
        self.steps.pop(job, None)
        self.done += 1
        self.until = monotonic()
        if file is None:
            self.quarantined += 1
            return
        count = DOCUMENTS.get(file.stage)
        documents = 0 if count is None else count(file)
        self.documents += documents
        if not file.cached:
            self.since = min(self.since, self.until - file.seconds)
            self.built += 1
            self.documents_built += documents

    @property
    def share(self) -> float:
        """Number of jobs that are done, running ones as far as they are."""
        return self.done + sum(self.shares.values())

    @property
    def percent(self) -> float:
        """Completed share of all jobs, running ones included, in percent."""
        return round(100 * self.share / max(self.jobs, 1), 1)

    def left(self) -> str:
        """Return about how long the other jobs take; empty if that is not known, or none is left."""
        if not self.built or self.done >= self.jobs:
            return ""
        until = monotonic() if self.shares else self.until  # jobs may run longer than those before
        running = self.share - self.done
        return duration((until - self.since) * (self.jobs - self.share) / (self.built + running))

    def describe(self) -> str:
        """Return one line: jobs, documents, documents per second, time left, loops of the running jobs."""
        parts = [f"{self.done:,} of {self.jobs:,} done"]
        if cached := self.done - self.built - self.quarantined:
            parts.append(f"{cached:,} cached")
        if self.quarantined:
            parts.append(f"{self.quarantined:,} quarantined")
        if self.documents:
            parts.append(f"{self.documents:,} documents")
        if self.documents_built:
            parts.append(f"{self.documents_built / max(self.until - self.since, 1e-3):,.0f} documents/s")
        if left := self.left():
            parts.append(f"about {left} left")
        loops = [", ".join(map(str, steps)) for steps in self.steps.values() if steps]
        parts += loops[:LISTED_JOBS] + (["..."] if len(loops) > LISTED_JOBS else [])
        return ", ".join(parts)


class Screen:
    """Shows a run on stderr: a bar for each stage, or without `bars` a line after 1, 2, 4 and so on minutes."""

    def __init__(self, *, bars: bool = False) -> None:
        self._started, self._next = monotonic(), FIRST_LINE
        self._shows_bars = bars
        told = TextColumn("{task.fields[told]}", markup=False)
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), told)
        self.bars = Progress(*columns, console=SafeConsole(stderr=True), transient=True, disable=not bars)
        self._tasks = {"": self.bars.add_task("starting", total=None, told="")}  # by stage

    def show(self, stage: StageProgress) -> None:
        """Show how far a stage is."""
        seconds = monotonic() - self._started
        if self._shows_bars:
            if "" in self._tasks:
                self.bars.remove_task(self._tasks.pop(""))
            if stage.stage not in self._tasks:
                self._tasks[stage.stage] = self.bars.add_task(stage.stage, told="")
            task = self._tasks[stage.stage]
            self.bars.update(task, completed=stage.share, total=stage.jobs, told=stage.describe())
        elif seconds >= self._next:
            self._next = 2 * seconds
            echo(f"{duration(seconds)}: {stage.stage}, {stage.describe()}", err=True)


screen: ContextVar[Screen | None] = ContextVar("screen", default=None)
"""Where the run of this context is shown, beside its log and the Prefect UI."""


@contextmanager
def flow_shown(*, bars: bool, verbose: bool = False) -> Iterator[None]:
    """Show the flow that runs in the block, on a server of Prefect's that is checked or started.

    Parameters
    ----------
    bars
        Whether to draw bars; else it is printed now and then how far the run is.
    verbose
        Whether to print all that Prefect logs, and nothing else; else only its warnings, in our own words.
    """
    shown = Screen(bars=bars)
    token = screen.set(None if verbose else shown)
    try:
        with shown.bars:  # at once: Prefect and its server take seconds
            from fineweb_mask.flows.processes.prefect_api import server_used

            with server_used(lambda: import_module("fineweb_mask.flows.pipeline.start")):
                logs_made_visible(verbose=verbose)
                yield
    finally:
        screen.reset(token)


def duration(seconds: float) -> str:
    """Return a time in hours, minutes and seconds.

    >>> duration(75), duration(3_700)
    ('1 min 15 s', '1 h 1 min')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours:,} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
