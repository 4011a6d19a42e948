"""Show a person how far a run is: bars on a terminal, in a pipe a line now and then."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from importlib import import_module
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from fineweb_mask.flows.display.terminal import echo, logs_made_visible
from fineweb_mask.flows.processes import temporary_server
from fineweb_mask.models.runtime.progress import Step
from fineweb_mask.tasks.workspace.references import StageFile

if TYPE_CHECKING:
    from uuid import UUID

FIRST_LINE = 60.0
"""Seconds after which a run that nobody watches says how far it is; each further line takes twice as long."""

LISTED_JOBS = 4
"""Maximum number of running jobs whose progress is shown in a line."""

DOCUMENTS = "documents"
"""What a job's loop over its documents is called."""


class Bar(NamedTuple):
    """A line on the screen: of a stage, or of a loop of one of its jobs."""

    name: str
    done: float
    total: int | None  # None: not known
    amount: str = ""
    rate: str = ""
    time: str = ""


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
    begun: float = field(default_factory=monotonic)
    since: float = math.inf  # when building the first file began
    until: float = 0.0
    shares: dict[str, float] = field(default_factory=dict)  # completed share of each running job, 0 to 1
    steps: dict[str, tuple[Step, ...]] = field(default_factory=dict)  # active loops of each running job
    due: dict[str, float] = field(default_factory=dict)  # of each running job: time of its next line in the log
    artifact: "UUID | None" = None
    changed: bool = True

    def report(self, job: str, share: float, steps: tuple[Step, ...]) -> None:
        """Note how far a running job is."""
        self.shares[job], self.steps[job] = share, steps

    def end(self, job: str, file: StageFile | None) -> None:
        """Count a job that has ended, and what it made; None if its shard was quarantined."""
        from fineweb_mask.tasks.registry import documents_through

        for running in (self.shares, self.steps, self.due):
            running.pop(job, None)
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
    def cached(self) -> int:
        """Number of jobs whose files were there before."""
        return self.done - self.built - self.quarantined

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
        if self.cached:
            parts.append(f"{self.cached:,} cached")
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

    def bars(self) -> list[Bar]:
        """Return the stage's bar, with its documents and their rate, and below it one for each loop of its jobs."""
        own = [steps[0] for steps in self.steps.values() if steps and steps[0].what == DOCUMENTS]
        read = sum(step.done for step in own)
        seen, built = self.documents + read, self.documents_built + read
        amount = f"{self.done:,} of {self.jobs:,}"
        if seen and self.done + len(own) < self.jobs:
            amount = f"{seen:,} documents, {amount} files"
        elif seen:
            amount = f"{seen:,} of {self.documents + sum(step.total for step in own):,} documents"
        rate = f"{built / max(monotonic() - self.begun, 1e-3):,.0f}/s" if built else ""
        left, taken = self.left(), (self.until if self.done >= self.jobs else monotonic()) - self.begun
        time = f"{left} left" if left else duration(max(taken, 0.0))
        found = [Bar(self.stage.replace("_", " "), self.share, self.jobs, amount, rate, time)]
        for steps in self.steps.values():
            below = (step for step in steps if step.what != DOCUMENTS)
            for depth, step in enumerate(below, start=1):
                amount = f"{step.done:,} of {step.total:,}"
                found.append(Bar("  " * depth + step.what, step.done, step.total, amount))
        return found


class Screen:
    """Shows the stages of a run in bars, which rich draws, or `say`s how far one is after 1, 2, 4 and so on minutes."""

    def __init__(self, say: Callable[[str], None] | None = None) -> None:
        self._say = say
        self._started, self._next = monotonic(), FIRST_LINE
        self.bars: dict[str, list[Bar]] = {"": [Bar("starting", 0, None)]}  # by stage

    def show(self, stage: StageProgress) -> None:
        """Show how far a stage is."""
        seconds = monotonic() - self._started
        if self._say is None:
            self.bars.pop("", None)
            self.bars[stage.stage] = stage.bars()
        elif seconds >= self._next:
            self._next = 2 * seconds
            self._say(f"{duration(seconds)}: {stage.stage}, {stage.describe()}")

    def table(self) -> Table:
        """Return the bars as they are drawn."""
        table = Table.grid(padding=(0, 1), expand=True)
        table.add_column(min_width=14, no_wrap=True)
        table.add_column(ratio=1)
        for _ in ("amount", "rate", "time"):
            table.add_column(justify="right", no_wrap=True)
        for bar in [bar for bars in list(self.bars.values()) for bar in bars]:
            drawn = ProgressBar(bar.total, bar.done, pulse=bar.total is None, animation_time=monotonic())
            table.add_row(bar.name, drawn, bar.amount, bar.rate, bar.time)
        return table


screen: ContextVar[Screen | None] = ContextVar("screen", default=None)
"""Where the run of this context is shown, beside its log and the Prefect UI."""


@contextmanager
def shown_on(console: Console | None) -> Iterator[None]:
    """Draw bars on a console while the block runs; without one, print now and then how far its run is."""
    shown = Screen(None if console else lambda line: echo(line, err=True))
    token = screen.set(shown)
    try:
        live = Live(console=console, transient=True, refresh_per_second=10, get_renderable=shown.table)
        with live if console else nullcontext():
            yield
    finally:
        screen.reset(token)


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
