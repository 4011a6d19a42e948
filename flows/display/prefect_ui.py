"""Publish a run to the Prefect UI: live progress by stage, a table by stage, the report with its plots.

Display only: if publishing fails, the run logs a warning and continues.
"""

import base64
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from pathlib import Path
from threading import Event, Lock, Thread
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
from fineweb_mask.tasks.registry import amounts_through
from fineweb_mask.tasks.reporting.templating import markdown as as_markdown
from fineweb_mask.tasks.storage.remote.copies import ensure_local
from fineweb_mask.tasks.workspace.manifest import read_manifest
from fineweb_mask.tasks.workspace.references import StageFile

if TYPE_CHECKING:
    from uuid import UUID

REFRESH_SECONDS = 1.0
LISTED = 50
"""Maximum number of quarantined shards in the report."""
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

    def on_stage(self, stage: str, jobs: int, current: int) -> None:
        """Count the jobs of a stage, of which some have outputs that are current."""
        with self._changing(stage) as progress:
            progress.jobs += jobs
        get_run_logger().info("%s: %d to do, %d of them cached", stage, jobs, current)

    def on_job_progress(self, stage: str, job: str, share: float, steps: tuple[Step, ...]) -> None:
        """Note how far a running job is: its completed share, and its active loops, outermost first."""
        with self._changing(stage) as progress:
            progress.report(job, share, steps)

    def on_job_end(self, stage: str, job: str, file: StageFile | None) -> None:
        """Count a job that has ended, and log an output that it built; None if its shard was quarantined."""
        with self._changing(stage) as progress:
            progress.end(job, file)
        if file is not None and not file.cached:
            rate = f", {file.rows / file.seconds:,.0f} rows/s" if file.rows and file.seconds else ""
            get_run_logger().info("%s: %s, %d rows, %.1f s%s", stage, file.name, file.rows, file.seconds, rate)

    def on_quarantined(self, stage: str, shard: str, reason: str) -> None:
        """Log a quarantined shard, and emit an event for it."""
        self.on_job_end(stage, shard, None)
        get_run_logger().warning("%s is set aside: %s", shard, reason)
        announce("shard.quarantined", shard, {"workspace": self._workspace, "stage": stage, "reason": reason})

    def on_wiped(self, groups: Sequence[Wiped]) -> None:
        """Emit an event for each group of which a step keeps nearly nothing; the run may end with them."""
        for one in groups:
            name = f"{one.by_column}: {one.value}"
            announce("group.wiped", name, {"workspace": self._workspace, "reason": str(one), **one._asdict()})

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

    def publish(self, summary: RunSummary, reports: Path) -> None:
        """Publish the table and the report of a finished run, with the page in the folder `reports`."""
        through, rows = amounts_through(summary.counts), []
        for stage in summary.stages:
            before, after = through.get(stage.stage, (None, None))
            built = self._stages[stage.stage].documents_built
            rows.append(
                {
                    "stage": stage.stage,
                    "documents in": before and before.documents,
                    "documents out": after and after.documents,
                    "cached": f"{stage.cached:,} of {stage.files:,}",
                    "seconds": round(stage.seconds, 1),
                    "documents/s": round(built / stage.seconds) if built and stage.seconds else None,
                }
            )
        publish_table("funnel", self._workspace, rows, "Seconds are summed over the tasks of a stage.")
        aside = [f"{one.shard}: {one.reason}" for one in summary.quarantined[:LISTED]]
        files = [f"{name}: {getattr(summary, name)}" for name in ("dataset", "card", "report")]
        title = f"Quarantined ({len(summary.quarantined):,})"
        lists = [(title, aside), ("Files on the worker's machine", files)]
        text = [
            f"## {name}\n\n" + "\n".join(f"- {as_markdown(one)}" for one in listed) for name, listed in lists if listed
        ]
        publish_page(reports, "report", self._workspace, "What was selected, and why.", *text)


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


def publish_table(what: str, workspace: str, rows: list[dict[str, Any]], description: str) -> None:
    """Publish a table as an artifact of a workspace."""
    or_warn(create_table_artifact, rows, key=artifact_key(what, workspace), description=description)


def publish_page(folder: Path, what: str, workspace: str, description: str, *more: str) -> None:
    """Publish the page in a folder, with its tables and charts and more parts in Markdown, as an artifact."""
    text = "\n\n".join([page_markdown(folder), *more]) + "\n"
    or_warn(create_markdown_artifact, text, key=artifact_key(what, workspace), description=description)


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
