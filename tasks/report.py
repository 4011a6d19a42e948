"""Report: a self-contained HTML page on what went in, what came out and why; its numbers and its plots as files."""

from pathlib import Path
from typing import Any

from fineweb_mask.models.settings import ReportSettings
from fineweb_mask.tasks.reporting.breakdown import as_metrics, break_down
from fineweb_mask.tasks.reporting.geometry import measure
from fineweb_mask.tasks.reporting.page import Page, PageJob, write_page
from fineweb_mask.tasks.reporting.samples import SelectedShard
from fineweb_mask.tasks.reporting.sections import (
    StageTime,
    certificate,
    distributions,
    diversity,
    funnel,
    retention,
    threshold,
    tiles,
    time_by_stage,
)
from fineweb_mask.tasks.workspace.counts import Counts
from fineweb_mask.tasks.workspace.job import build_once, stage_task
from fineweb_mask.tasks.workspace.workspace import StageFile, StageKey, Workspace, digest

VERSION = 3


class ReportJob(PageJob):
    """Write the report of a dataset."""

    dataset: StageFile
    shards: list[SelectedShard]
    counts: Counts
    blocks: list[dict[str, Any]]
    stages: list[StageTime]  # of the run that the report is first written in
    settings: ReportSettings

    @property
    def folder(self) -> Path:
        """Where the page lies."""
        return self.workspace.reports


def plan(
    workspace: Workspace,
    *,
    dataset: StageFile,
    shards: list[SelectedShard],
    counts: Counts,
    blocks: list[dict[str, Any]],
    stages: list[StageTime],
    settings: ReportSettings,
) -> ReportJob:
    """Return the job that reports on a dataset."""
    read = [
        [file.name, file.fingerprint]
        for shard in shards
        for file in (shard.documents, shard.scores, shard.embeddings, shard.masks)
    ]
    key = StageKey(
        stage="report",
        version=VERSION,
        settings=digest(settings.model_dump()),
        inputs=digest([dataset.fingerprint, read]),
    )
    return ReportJob(
        root=str(workspace.root),
        name="report",
        key=key,
        dataset=dataset,
        shards=shards,
        counts=counts,
        blocks=blocks,
        stages=stages,
        settings=settings,
    )


def report(job: ReportJob) -> StageFile:
    """Write `index.html`, `metrics.json` and the plots in `plots/`.

    Raises
    ------
    ValueError
        If `report.by` names a column that no shard has, or one that has no text.
    """
    return build_once(job, lambda: write_page(job.folder, _page(job), job.key))


def _page(job: ReportJob) -> Page:
    breakdown = break_down(job.workspace, job.shards, job.settings.by)
    spread = measure(job.workspace, job.shards, job.settings)
    code = job.dataset.details["code"]
    sections = [
        funnel(job.counts, job.shards),
        distributions(breakdown),
        retention(breakdown),
        *([] if spread is None else [diversity(spread)]),
        certificate(job.blocks),
        *([] if spread is None else [threshold(job.workspace, job.shards, spread, breakdown)]),
        *([time_by_stage(job.stages)] if job.stages else []),
    ]
    commit = f", commit {code['commit'][:12]}" if code["commit"] else ""
    changed = " with local changes" if code["dirty"] else ""
    return Page(
        title="Selection report",
        lead="What went in, what came out and why, and how near to the best possible the selection is.",
        tiles=tiles(job.counts, job.blocks),
        sections=sections,
        footer=f"fineweb-mask {code['version']}{commit}{changed}",
        metrics={
            "counts": job.counts.model_dump(),
            "retention": {
                **{name: as_metrics(shares) for name, shares in breakdown.groups.items()},
                **{name: as_metrics(shares) for name, shares in breakdown.deciles.items()},
            },
            "diversity": {}
            if spread is None
            else {name: geometry.as_metrics() for name, geometry in spread.geometry.items()},
            "clusters": [] if spread is None else [cluster._asdict() for cluster in spread.clusters],
            "blocks": job.blocks,
            "stages": [stage.model_dump() for stage in job.stages],
        },
    )


report_task = stage_task(report)
