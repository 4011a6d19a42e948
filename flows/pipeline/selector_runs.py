"""Run several selectors over the same blocks and ranges, for the sweep and the comparison, and publish their pages."""

from pathlib import Path
from typing import Any, TypeVar

from prefect.artifacts import create_table_artifact
from prefect.logging import get_run_logger

from fineweb_mask.flows.display.prefect_ui import artifact_key, or_warn, publish_page
from fineweb_mask.flows.pipeline.run import Run
from fineweb_mask.flows.summary import PageSummary
from fineweb_mask.models.settings import PipelineSelectionSettings
from fineweb_mask.tasks.comparison.figures import lamb_name
from fineweb_mask.tasks.comparison.page import ComparisonJob
from fineweb_mask.tasks.comparison.variants import RangesJob, VariantJob, noted_seconds
from fineweb_mask.tasks.selection.blocks import grouped
from fineweb_mask.tasks.witness.job import WitnessJob
from fineweb_mask.tasks.workspace.references import ShardFiles, StageFile

Page = TypeVar("Page", bound=PageSummary)


class SelectorRuns:
    """The selections of several selectors over the same groups of shards.

    Parameters
    ----------
    run
        Runs the jobs.
    shards
        The shards that are selected from.
    settings
        The settings of every selection, the solver aside.
    targets
        The examples of target tasks, for the selectors that read them.
    """

    def __init__(
        self,
        run: Run,
        shards: list[ShardFiles],
        settings: PipelineSelectionSettings,
        targets: StageFile | None = None,
    ) -> None:
        self._run = run
        self._groups = grouped(shards, settings.block_size)
        self._files: dict[str, list[StageFile]] = {}  # by selector, of every group
        self._masks: dict[str, list[StageFile]] = {}  # by selector, of every shard
        self._frontiers: list[StageFile] = []  # of every group
        self._swept: list[StageFile] = []  # the masks of all values of lamb, of every shard
        self._lambs: tuple[float, ...] = ()
        self._seconds: dict[str, float] = {}  # by selector or value of lamb
        self._settings = settings
        self._common = {"root": run.root, "settings": settings}
        self._given = {"targets": targets, **self._common}
        self._ranges = run.all([RangesJob(shards=group, **self._common) for group in self._groups])

    def sweep(self, lambs: tuple[float, ...]) -> None:
        """Select from every group at every weight of quality."""
        jobs, self._frontiers = self._select("mean_field", lambs)
        self._swept, self._lambs = _masks_of(jobs), lambs

    def run(self, selectors: list[str]) -> None:
        """Select from every group by every selector, one job at a time, because their times are compared."""
        for selector in selectors:
            get_run_logger().info("%s selects", selector)
            jobs, self._files[selector] = self._select(selector)
            self._masks[selector] = _masks_of(jobs)

    def _select(self, selector: str, lambs: tuple[float, ...] = ()) -> tuple[list[VariantJob], list[StageFile]]:
        jobs = [
            VariantJob(shards=group, selector=selector, lambs=lambs, ranges=ranges, **self._given)
            for group, ranges in zip(self._groups, self._ranges, strict=True)
        ]
        made = self._run.all(jobs, at_once=1)
        for job in jobs:
            for value, seconds in noted_seconds(job).items():
                name = value if lambs else selector
                self._seconds[name] = self._seconds.get(name, 0.0) + seconds
        return jobs, made

    def comparison(self, page: str, by: str | None = None, **options: Any) -> ComparisonJob:  # noqa: ANN401
        """Measure what each selection teaches, and return the job that writes the page on what was selected.

        `by` is a column whose values count as much as each other, `options` are other fields of the job.
        """
        swept = {lamb_name(lamb): f"lamb={lamb}" for lamb in self._lambs}
        teaching = WitnessJob(
            page=page,
            shards=[shard for group in self._groups for shard in group],
            selections=self._masks | dict.fromkeys(swept, self._swept),
            columns=swept,
            by=by,
            threshold=self._settings.alike,
            root=self._run.root,
        )
        return ComparisonJob(
            teaching=self._run.one(teaching),
            documents=[shard.documents for group in self._groups for shard in group],
            masks=self._masks,
            groups=self._files,
            seconds=self._seconds,
            frontiers=self._frontiers,
            **self._common,
            **options,
        )


def _masks_of(jobs: list[VariantJob]) -> list[StageFile]:
    return [file for job in jobs for file in job.shard_files() or []]


def published(
    kind: type[Page], run: Run, folder: Path, table: list[dict[str, Any]], description: str, **found: object
) -> Page:
    """Show a page and its table in the Prefect UI, each as an artifact, and return the summary of what was found."""
    publish_page(folder, artifact_key(folder.name, run.settings.workspace), description)
    key = artifact_key(f"{folder.name}-table", run.settings.workspace)
    or_warn(create_table_artifact, table, key=key, description=description)
    paths = {"page": folder / "index.html", "metrics": folder / "metrics.json"}
    return kind.of(run.workspace, run.quarantined, run.stages, **paths, **found)
