"""Report on a dataset: a self-contained HTML page, with its numbers and plots as files."""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar

from fineweb_mask.models.losses import GroupLosses, by_group
from fineweb_mask.models.settings import PipelineSettings, ReportSettings
from fineweb_mask.tasks.ledger.decisions import Corpus, notable_documents
from fineweb_mask.tasks.losses import read_losses, wiped_groups
from fineweb_mask.tasks.reporting import sections
from fineweb_mask.tasks.reporting.breakdown import break_down
from fineweb_mask.tasks.reporting.findings import findings
from fineweb_mask.tasks.reporting.geometry import measure
from fineweb_mask.tasks.reporting.page import Page, PageJob
from fineweb_mask.tasks.reporting.samples import files_read
from fineweb_mask.tasks.source.inventory import Inventory
from fineweb_mask.tasks.witness.job import teaching_findings, teaching_section
from fineweb_mask.tasks.workspace.job import Dependencies, Stage, stage_task
from fineweb_mask.tasks.workspace.records.counts import Counts
from fineweb_mask.tasks.workspace.references import NO_FILE, ShardFiles, StageFile


class ReportJob(PageJob):
    """Write the report of a dataset."""

    stage: ClassVar[Stage] = Stage("report", version=14, folders=("reports",))
    dataset: StageFile
    shards: list[ShardFiles]
    counts: Counts
    blocks: list[dict[str, Any]]
    losses: StageFile = NO_FILE  # what every step drops by group
    teaching: StageFile  # what `measure_teaching` found of the selection
    source: Inventory | None = None  # of the run that the report is first written in
    settings: ReportSettings

    def depends_on(self) -> Dependencies:
        """Return the report's settings, the dataset, and the files that are looked into."""
        files = [file.fingerprint for file in (self.dataset, self.teaching, self.losses)]
        return Dependencies(settings=self.settings.model_dump(), inputs=[*files, files_read(self.shards)])


@stage_task
def report(job: ReportJob) -> None:
    """Write `index.html`, `metrics.json` and the plots in `plots/`."""
    job.write(_page(job))


def _facts(recipe: dict[str, Any], version: str) -> list[tuple[str, str]]:
    """Return the settings that say which selection this is, and today's date."""
    selection = recipe["selection"]
    metrics, budget, unit = selection["metrics"], selection["budget"], selection["budget_by"]
    weights = {metrics: 1} if isinstance(metrics, str) else metrics
    return [
        ("source", recipe["source"]["path"]),
        ("blocks", selection["blocks"]),
        ("solver", selection["solver"]),
        ("metrics", ", ".join(f"{name} {weight:g}" for name, weight in weights.items())),
        ("lamb", f"{selection['lamb']:g}"),
        ("budget", f"{selection['select_ratio']:.4g} of the {unit}" if budget is None else f"{budget:,} {unit}"),
        ("seed", str(selection["seed"])),
        ("version", version),
        ("date", datetime.now(UTC).date().isoformat()),
    ]


MOST_VALUES = 24
"""Values of a column of the source's own that is shown without being asked."""


def _own_columns(groups: Sequence[GroupLosses]) -> list[str]:
    """Return the columns of text with few values, as the count of losses found them."""
    values = Counter(group.by_column for group in groups if group.value is not None)
    return [name for name, count in values.items() if 2 <= count <= MOST_VALUES and name not in sections.GROUPS]


def _page(job: ReportJob) -> Page:
    lost, wiped = read_losses(job.workspace, job.losses), wiped_groups(job.losses)
    losses = by_group(lost)
    by = _own_columns(losses) if job.settings.by is None else job.settings.by
    breakdown, measured = break_down(job.workspace, job.shards, by), measure(job.workspace, job.shards)
    code, recipe = job.dataset.details["code"], job.dataset.details["recipe"]
    selection, has_groups = recipe["selection"], any("group" in block for block in job.blocks)
    corpus = Corpus(job.workspace, PipelineSettings.model_validate({**recipe, "workspace": job.root}), job.shards)
    parts = [
        sections.funnel(job.counts, job.shards),
        *notable_documents(corpus),
        sections.shares(breakdown),
        sections.distributions(breakdown),
        *([] if measured is None else [sections.diversity(measured)]),
        teaching_section(job.teaching.details),
        *sections.group_losses(losses, wiped),
        *([sections.budgets(job.blocks, selection["groups"]["column"], selection["budget_by"])] if has_groups else []),
        sections.certificate(job.blocks),
        sections.what_was_read(job.source, job.shards),
    ]
    commit = f", commit {code['commit'][:12]}" if code["commit"] else ""
    dirty = " with local changes" if code["dirty"] else ""
    taught = teaching_findings(job.teaching.details)
    return Page(
        title="Selection report",
        lead="What was gained, what was lost, and why to doubt it; then what went in and what decided.",
        facts=_facts(recipe, code["version"]),
        findings=findings(recipe, job.counts, job.blocks, breakdown, measured, taught, wiped),
        tiles=sections.tiles(job.counts, job.blocks),
        sections=[one for one in parts if one.figures or one.tables or one.sides or one.text],
        footer=f"fineweb-mask {code['version']}{commit}{dirty}",
        metrics={
            "counts": job.counts.model_dump(),
            "losses": lost,
            "retention": {name: [one._asdict() for one in rows] for name, rows in breakdown.groups.items()},
            "quality_between": breakdown.between,
            "diversity": {}
            if measured is None
            else {name: geometry._asdict() for name, geometry in measured.geometry.items()},
            "clusters": [] if measured is None else [cluster._asdict() for cluster in measured.clusters],
            "blocks": job.blocks,
            "teaching": job.teaching.details,
            "source": None if job.source is None else job.source.model_dump(),
        },
    )
