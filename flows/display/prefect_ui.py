"""Publish a run to the Prefect UI: live progress by stage, a table by stage and shard, the report with its plots.

Display only: if publishing fails, the run logs a warning and continues.
"""

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from pathlib import Path
from threading import Event, Lock, Thread
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

import httpx
from prefect.artifacts import (
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)
from prefect.events import emit_event
from prefect.logging import get_run_logger

from fineweb_mask.flows.display.progress import StageProgress, screen
from fineweb_mask.flows.processes.environment import server_lost
from fineweb_mask.flows.processes.prefect_api import PrefectServerError, is_temporary, server_problem
from fineweb_mask.flows.summary import RunSummary
from fineweb_mask.models.losses import Wiped
from fineweb_mask.models.runtime.progress import Step
from fineweb_mask.models.settings import PipelineSettings
from fineweb_mask.tasks.registry import amounts_through, documents_through
from fineweb_mask.tasks.reporting.templating import markdown as as_markdown
from fineweb_mask.tasks.storage.remote.copies import ensure_local
from fineweb_mask.tasks.workspace.manifest import read_manifest
from fineweb_mask.tasks.workspace.references import StageFile

if TYPE_CHECKING:
    from uuid import UUID

REFRESH_SECONDS = 1.0
LOG_SECONDS = 30.0
"""Time between two log lines on the progress of one job."""
CACHED_LINES = 20
"""Files of a stage that were there before, and have a log line each."""
CACHED_FILES = 1_000
"""After those, files for one line."""
SHARD_ROWS = 1_000
"""Maximum number of shards in the table, which the server stores in its database."""
LISTED = 50
"""Maximum number of quarantined shards in the report."""
PLAIN = re.compile(r"[\w -]*")
"""Names that are the same as Markdown, which is what the UI takes a cell of a table for."""
KEY_CHARACTERS = 60
"""Most characters of a workspace's path in a key; the last ones."""
PAGE_BYTES = 800_000
"""Maximum size of a page in the UI. The event of its artifact contains the page, and `prefect deployment run --watch`
requests the same events forever if one is larger than 1 MiB."""


class PrefectUi:
    """Logs what the jobs of a run do, and collects it for the UI; where there is a screen, it shows it, too."""

    def __init__(self, workspace: str) -> None:
        self._workspace = workspace
        self._screen = screen.get()
        self._lock = Lock()
        self._stages: dict[str, StageProgress] = {}
        self._files: list[dict[str, Any]] = []
        self._count = 0

    def on_stage(self, stage: str, jobs: int) -> None:
        """Count `jobs` more jobs of a stage; a negative number withdraws some."""
        with self._changing(stage) as progress:
            progress.jobs += jobs
        if jobs > 0:
            get_run_logger().info("%s: %d to do", stage, jobs)

    def on_job_progress(self, stage: str, job: str, share: float, steps: tuple[Step, ...]) -> None:
        """Note how far a running job is: its completed share, and its active loops, outermost first."""
        now = monotonic()
        with self._changing(stage) as progress:
            progress.report(job, share, steps)
            is_due = bool(steps) and now >= progress.due.setdefault(job, now + LOG_SECONDS)
            if is_due:
                progress.due[job] = now + LOG_SECONDS
        if is_due:
            get_run_logger().info("%s: %s, %s", stage, job, ", ".join(map(str, steps)))

    def on_job_end(self, stage: str, job: str, file: StageFile | None) -> None:
        """Count a job that has ended, and log its output; None if its shard was quarantined."""
        with self._changing(stage) as progress:
            progress.end(job, file)
            cached = progress.cached
            if file is not None and (through := documents_through(file)) is not None:
                self._count += 1
                if not file.cached or len(self._files) < SHARD_ROWS:  # the slowest are listed
                    name = file.name if PLAIN.fullmatch(file.name) else as_markdown(file.name)
                    self._files.append(_row(stage, name, through, file.seconds, "yes" if file.cached else "no"))
        if file is None:
            return
        if not file.cached:
            rate = f", {file.rows / file.seconds:,.0f} rows/s" if file.rows and file.seconds else ""
            get_run_logger().info("%s: %s, %d rows, %.1f s%s", stage, file.name, file.rows, file.seconds, rate)
        elif cached <= CACHED_LINES:
            get_run_logger().info("%s: %s, %d rows, cached", stage, file.name, file.rows)
        elif cached % CACHED_FILES == 0:
            get_run_logger().info("%s: %d files cached", stage, cached)

    def on_quarantined(self, stage: str, shard: str, reason: str) -> None:
        """Log a quarantined shard, and emit an event for it."""
        self.on_job_end(stage, shard, None)
        get_run_logger().warning("%s is set aside: %s", shard, reason)
        announce("shard.quarantined", shard, {"workspace": self._workspace, "stage": stage, "reason": reason})

    def on_wiped(self, groups: Sequence[Wiped]) -> None:
        """Publish the groups of which a step keeps nearly nothing; the run may end with them."""
        rows = [
            {
                "group": as_markdown(f"{one.by_column}: {one.value}"),
                "step": one.step,
                "documents": one.documents,
                "kept": one.kept,
                "dropped": as_markdown(", ".join(f"{number:,} {reason}" for reason, number in one.reasons.items())),
            }
            for one in groups
        ]
        for one in groups:
            name = f"{one.by_column}: {one.value}"
            announce("group.wiped", name, {"workspace": self._workspace, "reason": str(one), **one._asdict()})
        key = artifact_key("wiped", self._workspace)
        or_warn(create_table_artifact, rows, key=key, description="Groups of which a step keeps nearly nothing.")

    @contextmanager
    def _changing(self, stage: str) -> Iterator[StageProgress]:
        with self._lock:
            progress = self._stages.setdefault(stage, StageProgress(stage))
            progress.changed = True
            yield progress
            if self._screen is not None:
                self._screen.show(progress)

    def refresh(self) -> None:
        """Publish the progress of the stages that have changed since the last call."""
        with self._lock:
            changed = [stage for stage in self._stages.values() if stage.changed and stage.jobs]
            for stage in changed:
                stage.changed = False
        for stage in changed:
            if stage.artifact is None:
                key = artifact_key(f"progress-{stage.stage}", self._workspace)
                stage.artifact = cast("UUID", create_progress_artifact(stage.percent, key, stage.describe()))
            else:
                update_progress_artifact(stage.artifact, stage.percent, stage.describe())

    def _stage_rows(self, summary: RunSummary) -> list[dict[str, Any]]:
        through = amounts_through(summary.counts)
        rows = []
        for stage in summary.stages:
            before, after = through.get(stage.stage, (None, None))
            documents = None if before is None or after is None else (before.documents, after.documents)
            row = _row(stage.stage, "all", documents, stage.seconds, f"{stage.cached:,} of {stage.files:,}")
            built = self._stages[stage.stage].documents_built
            rows.append(row | {"documents/s": round(built / stage.seconds) if built and stage.seconds else None})
        return rows

    def publish(self, summary: RunSummary, reports: Path) -> None:
        """Publish the table and the report of a finished run, with the page in the folder `reports`."""
        slowest = sorted(self._files, key=lambda row: row["seconds"], reverse=True)[:SHARD_ROWS]
        table = [*self._stage_rows(summary), *slowest]
        note = "Seconds are summed over the tasks of a stage."
        if self._count > SHARD_ROWS:
            note += f" Only the {SHARD_ROWS:,} slowest of {self._count:,} files are listed."
        or_warn(create_table_artifact, table, key=artifact_key("funnel", self._workspace), description=note)
        or_warn(
            create_markdown_artifact,
            markdown(summary, reports),
            key=artifact_key("report", self._workspace),
            description="What was selected, and why.",
        )


def artifact_key(what: str, workspace: str) -> str:
    """Return the key of an artifact of a workspace, under which Prefect keeps its versions.

    >>> artifact_key("report", "workspaces/sample")
    'report-workspaces-sample'
    >>> artifact_key("progress-fit_encoder", "s3://bucket/Web 2")
    'progress-fit-encoder-s3-bucket-web-2'
    """
    return re.sub(r"[^a-z0-9]+", "-", f"{what}-{workspace[-KEY_CHARACTERS:]}".lower()).strip("-")


@contextmanager
def published_to_ui(workspace: str) -> Iterator[PrefectUi]:
    """Publish the progress of a run in this workspace in the block; yield what it tells, and publishes its results.

    A temporary server has no UI, so no live progress is published there.
    """
    server_lost.clear()
    ui = PrefectUi(workspace)
    ended = Event()
    live = [] if is_temporary() else [Thread(target=copy_context().run, args=(_refresh_until, ended, ui))]
    for thread in live:
        thread.start()
    try:
        yield ui
    finally:
        ended.set()
        for thread in live:
            thread.join()


def _refresh_until(ended: Event, ui: PrefectUi) -> None:
    is_last = False
    while not is_last:
        is_last = ended.wait(REFRESH_SECONDS)
        or_warn(ui.refresh)


def or_warn(publish: Callable[..., object], *arguments: Any, **named: Any) -> None:  # noqa: ANN401 - what it takes
    """Publish something; a failure is a warning, and a server that no longer answers is asked no more."""
    if server_lost.is_set():
        return
    try:
        publish(*arguments, **named)
    except (httpx.HTTPError, OSError, PrefectServerError) as error:
        problem = server_problem(error)
        get_run_logger().warning("cannot show this in the UI: %s", problem or f"{type(error).__name__}: {error}")
        if (problem or isinstance(error, httpx.TransportError)) and not server_lost.is_set():
            server_lost.set()
            get_run_logger().warning("the run goes on without Prefect's server")


def announce(what: str, name: str, payload: Mapping[str, Any]) -> None:
    """Emit the event `fineweb-mask.KIND.WHAT` on a thing of that kind; Prefect adds the flow run to it."""
    kind = what.partition(".")[0]
    resource = {"prefect.resource.id": f"fineweb-mask.{kind}.{name}", "prefect.resource.name": name}
    or_warn(emit_event, f"fineweb-mask.{what}", resource, payload=dict(payload))


def announce_dataset(summary: RunSummary, settings: PipelineSettings, metrics: Path) -> None:
    """Emit the event of a dataset that a run has written, if it has, with figures of the report's `metrics`."""
    if not any(stage.stage == "materialize" and stage.cached < stage.files for stage in summary.stages):
        return
    found = json.loads(ensure_local(metrics).read_bytes())
    gaps = [block["gap"] for block in found["blocks"] if block["gap"] is not None]
    named = ("workspace", "dataset", "report", "documents_in", "documents_kept", "objective", "terms")
    payload = {name: getattr(summary, name) for name in named} | {
        "gap": max(gaps, default=None),  # of the block where it is widest
        "near_duplicates": found["diversity"].get("selected", {}).get("near_duplicates"),
        "tokens": summary.counts.tokens_selected,
        "recipe": settings.model_dump(mode="json", exclude_unset=True),
    }
    announce("dataset.published", summary.dataset, payload)


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


def markdown(summary: RunSummary, reports: Path) -> str:
    """Return the report of a run: its page, the quarantined shards, and the paths of its files."""
    aside = ((one.shard, one.reason) for one in summary.quarantined[:LISTED])
    files = ((name, getattr(summary, name)) for name in ("dataset", "card", "report"))
    parts = [
        page_markdown(reports),
        *_table(f"quarantined ({len(summary.quarantined):,})", "reason", aside),
        "## Files",
        *_table("what", "path on the worker's machine", files),
        f"There, the documents on a map: `fineweb-mask explore {summary.workspace.replace('`', '')}`",
    ]
    return "\n\n".join(parts) + "\n"


def publish_page(folder: Path, key: str, description: str) -> None:
    """Publish the page in a folder, with its tables and charts, as an artifact."""
    or_warn(create_markdown_artifact, page_markdown(folder), key=key, description=description)


def page_markdown(folder: Path) -> str:
    """Return a page as Markdown with as many embedded charts as fit; empty if there is no complete page."""
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


def _table(first: str, second: str, rows: Iterable[tuple[str, str]]) -> list[str]:
    """Return the Markdown of a table of free text; nothing without rows."""
    lines = [f"{as_markdown(name)} | {as_markdown(text)}" for name, text in rows]
    return ["\n".join([f"{first} | {second}", "--- | ---", *lines])] if lines else []
