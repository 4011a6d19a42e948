"""What the Prefect UI shows of a run: live progress by stage, a table by stage and shard, a report with its plots.

All of it is for looking at: where it cannot be published the run goes on, with a warning in its log.
"""

import base64
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import httpx
from prefect.artifacts import (
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)
from prefect.logging import get_run_logger
from prefect.settings import PREFECT_API_URL

from fineweb_mask.flows.display.listeners import Listener, listener
from fineweb_mask.flows.engine.registry import amounts_through, documents_through
from fineweb_mask.models.runtime.progress import Step
from fineweb_mask.tasks.reporting.templating import markdown as as_markdown
from fineweb_mask.tasks.storage.mirror import ensure_local
from fineweb_mask.tasks.workspace.manifest import read_manifest
from fineweb_mask.tasks.workspace.references import StageFile

if TYPE_CHECKING:
    from fineweb_mask.flows.summary import RunSummary

REFRESH_SECONDS = 1.0
SHARD_ROWS = 1_000
"""Most shards in the table: the server keeps it in its database, and a browser draws it."""
LISTED = 50
"""Most shards set aside in the report."""
LISTED_AT_WORK = 4
"""Most jobs at work whose loops are told."""
PAGE_BYTES = 800_000
"""Most bytes of a page in the UI. The event of its artifact holds it, and `prefect deployment run --watch`, which takes
no event of more than 1 MiB, would otherwise ask for the same events for ever."""


@dataclass
class StageProgress:
    """How far a stage is."""

    stage: str
    jobs: int = 0
    done: int = 0
    built: int = 0
    set_aside: int = 0
    documents: int = 0
    documents_built: int = 0
    since: float = math.inf  # when the first file began to be built
    until: float = 0.0
    shares: dict[str, float] = field(default_factory=dict)  # what is done of each job at work, 0 to 1
    steps: dict[str, tuple[Step, ...]] = field(default_factory=dict)  # the loops that each of them is in
    artifact: UUID | None = None
    changed: bool = True

    def count(self, file: StageFile | None) -> None:
        """Count one job."""
        self.done += 1
        self.until = time.monotonic()
        self.changed = True
        if file is None:
            self.set_aside += 1
        else:
            documents, _ = documents_through(file) or (0, 0)
            self.documents += documents
            if not file.cached:
                self.since = min(self.since, self.until - file.seconds)
                self.built += 1
                self.documents_built += documents

    @property
    def percent(self) -> float:
        """The share of the jobs that is done, with what is known to be done of those at work."""
        return round(100 * (self.done + sum(self.shares.values())) / max(self.jobs, 1), 1)

    def describe(self) -> str:
        """Return one line: jobs, documents, documents per second, seconds left, the loops of the jobs at work."""
        seconds = max(self.until - self.since, 1e-3)
        parts = [f"{self.done:,} of {self.jobs:,} done"]
        if cached := self.done - self.built - self.set_aside:
            parts.append(f"{cached:,} already there")
        if self.set_aside:
            parts.append(f"{self.set_aside:,} set aside")
        if self.documents:
            parts.append(f"{self.documents:,} documents")
        if self.documents_built:
            parts.append(f"{self.documents_built / seconds:,.0f} documents/s")
        if self.built and self.done < self.jobs:
            parts.append(f"about {_duration((self.jobs - self.done) * seconds / self.built)} left")
        at_work = [", ".join(map(str, steps)) for steps in self.steps.values() if steps]
        parts += at_work[:LISTED_AT_WORK] + (["..."] if len(at_work) > LISTED_AT_WORK else [])
        return ", ".join(parts)


class UiListener:
    """A listener that keeps the books of the run, and tells the listener that was there before, too."""

    def __init__(self, other: Listener) -> None:
        self._other = other
        self._lock = Lock()
        self._stages: dict[str, StageProgress] = {}
        self._files: list[dict[str, Any]] = []

    def started(self, stage: str, jobs: int) -> None:
        """Count the jobs of a stage."""
        with self._lock:
            progress = self._stages.setdefault(stage, StageProgress(stage))
            progress.jobs += jobs
            progress.changed = True
        self._other.started(stage, jobs)

    def finished(self, stage: str, file: StageFile | None) -> None:
        """Count one job, and remember what it did."""
        with self._lock:
            self._stages.setdefault(stage, StageProgress(stage)).count(file)
            if file is not None:
                through = documents_through(file)
                if through is not None:
                    cached = "yes" if file.cached else "no"
                    self._files.append(_row(stage, file.name, through, file.seconds, cached))
        self._other.finished(stage, file)

    def at_work(self, stage: str, job: str, share: float, steps: tuple[Step, ...]) -> None:
        """Remember how far a job is."""
        with self._lock:
            progress = self._stages.setdefault(stage, StageProgress(stage))
            progress.shares[job], progress.steps[job] = share, steps
            progress.changed = True
        self._other.at_work(stage, job, share, steps)

    def left(self, stage: str, job: str) -> None:
        """Forget how far a job is."""
        with self._lock:
            progress = self._stages.setdefault(stage, StageProgress(stage))
            progress.shares.pop(job, None)
            progress.steps.pop(job, None)
        self._other.left(stage, job)

    def refresh(self) -> None:
        """Publish the progress of the stages that have changed."""
        with self._lock:
            changed = [stage for stage in self._stages.values() if stage.changed and stage.jobs]
            for stage in changed:
                stage.changed = False
        for stage in changed:
            if stage.artifact is None:
                key = f"progress-{stage.stage.replace('_', '-')}"
                stage.artifact = cast("UUID", create_progress_artifact(stage.percent, key, stage.describe()))
            else:
                update_progress_artifact(stage.artifact, stage.percent, stage.describe())

    def _stage_rows(self, summary: "RunSummary") -> list[dict[str, Any]]:
        through = amounts_through(summary.counts)
        rows = []
        for stage in summary.stages:
            before, after = through.get(stage.stage, (None, None))
            documents = None if before is None or after is None else (before.documents, after.documents)
            row = _row(stage.stage, "all", documents, stage.seconds, f"{stage.cached:,} of {stage.files:,}")
            built = self._stages[stage.stage].documents_built
            rows.append(row | {"documents/s": round(built / stage.seconds) if built and stage.seconds else None})
        return rows

    def publish(self, summary: "RunSummary", reports: Path) -> None:
        """Publish the table and the report of a finished run."""
        with or_warn():
            slowest = sorted(self._files, key=lambda row: row["seconds"], reverse=True)[:SHARD_ROWS]
            table = [*self._stage_rows(summary), *slowest]
            note = "Seconds are summed over the tasks of a stage."
            if len(self._files) > SHARD_ROWS:
                note += f" Of {len(self._files):,} files, the {SHARD_ROWS:,} that took longest."
            create_table_artifact(table, key="funnel", description=note)
            create_markdown_artifact(
                markdown(summary, reports), key="report", description="What was selected, and why."
            )


@contextmanager
def published_to_ui() -> Iterator[UiListener]:
    """Listen to the run, and keep its progress up to date where a server shows it while the block runs.

    The temporary server of a run without one has no UI: there, only the table and the report are published.
    """
    shown = UiListener(listener.get())
    token = listener.set(shown)
    ended = Event()
    live = [Thread(target=copy_context().run, args=(_keep_fresh, shown, ended))] if PREFECT_API_URL.value() else []
    for thread in live:
        thread.start()
    try:
        yield shown
    finally:
        listener.reset(token)
        ended.set()
        for thread in live:
            thread.join()


def _keep_fresh(shown: UiListener, ended: Event) -> None:
    last = False
    while not last:
        last = ended.wait(REFRESH_SECONDS)
        with or_warn():
            shown.refresh()


@contextmanager
def or_warn() -> Iterator[None]:
    """Turn a failure to publish into a warning."""
    try:
        yield
    except (httpx.HTTPError, OSError) as error:
        get_run_logger().warning("cannot show this in the UI: %s: %s", type(error).__name__, error)


def _row(stage: str, shard: str, through: tuple[int, int] | None, seconds: float, cached: str) -> dict[str, Any]:
    documents_in, documents_out = through or (None, None)
    rate = round(documents_in / seconds) if documents_in and seconds else None
    return {
        "stage": stage,
        "shard": shard,
        "documents in": documents_in,
        "documents out": documents_out,
        "cached": cached,
        "seconds": round(seconds, 1),
        "documents/s": rate,
    }


def markdown(summary: "RunSummary", reports: Path) -> str:
    """Return the report of a run: its page, what was set aside, where all lies."""
    parts = [
        page_markdown(reports),
        *_table(
            f"set aside ({len(summary.quarantined):,})",
            ["reason"],
            [(one.shard, [as_markdown(one.reason)]) for one in summary.quarantined[:LISTED]],
            align="---",
        ),
        "## Files",
        *_table(
            "what",
            ["where, on the worker's machine"],
            [(name, [as_markdown(getattr(summary, name))]) for name in ("dataset", "card", "report")],
            align="---",
        ),
    ]
    return "\n\n".join(parts) + "\n"


def publish_page(folder: Path, key: str, description: str) -> None:
    """Publish a page that a task wrote, with its tables and its charts."""
    with or_warn():
        create_markdown_artifact(page_markdown(folder), key=key, description=description)


def page_markdown(folder: Path) -> str:
    """Return a page as Markdown with its charts inside, as many as fit; empty where there is no whole page."""
    manifest = read_manifest(folder / "manifest.json")
    if manifest is None:
        return ""
    text = ensure_local(folder / "index.md").read_text(encoding="utf-8")
    left = PAGE_BYTES - len(text.encode())
    for name in (name for name in manifest.files if name.endswith(".png")):
        picture = f"data:image/png;base64,{base64.b64encode(ensure_local(folder / name).read_bytes()).decode()}"
        fits = len(picture) <= left
        left -= len(picture) if fits else 0
        alt = Path(name).stem
        text = text.replace(f"![{alt}]({name})", f"![{alt}]({picture})" if fits else f"The chart is in `{name}`.")
    return text


def _table(
    first: str, others: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]], align: str = "---:"
) -> list[str]:
    """Return a table whose first column is free text; none without rows."""
    lines = [" | ".join([as_markdown(name), *values]) for name, values in rows]
    if not lines:
        return []
    return ["\n".join([" | ".join([first, *others]), " | ".join(["---"] + [align] * len(others)), *lines])]


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours:,} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
