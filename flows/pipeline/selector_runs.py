"""Run several selectors over the same blocks and ranges, for the sweep and the comparison, and publish their pages."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prefect.artifacts import create_table_artifact
from prefect.logging import get_run_logger

from fineweb_mask.flows.display.prefect_ui import artifact_key, or_warn, publish_page
from fineweb_mask.flows.pipeline.run import Run
from fineweb_mask.models.settings import PipelineSelectionSettings
from fineweb_mask.tasks.comparison.variants import RangesJob, VariantJob, noted_seconds
from fineweb_mask.tasks.inference.scorers import QualityModel
from fineweb_mask.tasks.selection.blocks import group_name, grouped
from fineweb_mask.tasks.workspace.references import StageFile
from fineweb_mask.tasks.workspace.shard_files import ShardFiles


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
    scorer
        The model that scores the documents that `quad` looks at.
    """

    def __init__(
        self,
        run: Run,
        shards: list[ShardFiles],
        settings: PipelineSelectionSettings,
        targets: StageFile | None = None,
        scorer: QualityModel | None = None,
    ) -> None:
        self.groups = grouped(shards, settings)
        self.files: dict[str, list[StageFile]] = {}  # by selector, of every group
        self.masks: dict[str, list[StageFile]] = {}  # by selector, of every shard
        self.frontiers: list[StageFile] = []  # of every group
        self.seconds: dict[str, float] = {}  # by selector or value of lamb
        self._run = run
        self._common = {"root": run.root, "settings": settings}
        self._targets, self._scorer = targets, scorer
        ranges = run.all([RangesJob(shards=group, **self._common) for group in self.groups])
        self._ranges = dict(zip(map(group_name, self.groups), ranges, strict=True))

    def sweep(self, lambs: tuple[float, ...]) -> None:
        """Select from every group at every weight of quality."""
        jobs = [
            VariantJob(
                shards=group,
                selector="mean_field",
                lambs=lambs,
                ranges=self._ranges[group_name(group)],
                **self._common,
            )
            for group in self.groups
        ]
        self.frontiers = self._run.all(jobs, at_once=1)
        self._note_seconds(jobs)

    def run(self, selectors: list[str]) -> None:
        """Select from every group by every selector, one job at a time, because their times are compared."""
        for selector in selectors:
            get_run_logger().info("%s selects", selector)
            jobs = [
                VariantJob(
                    shards=group,
                    selector=selector,
                    ranges=self._ranges[group_name(group)],
                    targets=self._targets,
                    scorer=self._scorer,
                    **self._common,
                )
                for group in self.groups
            ]
            self.files[selector] = self._run.all(jobs, at_once=1)
            self.masks[selector] = [file for job in jobs for file in job.shard_files() or []]
            self._note_seconds(jobs, selector)

    def _note_seconds(self, jobs: Sequence[VariantJob], selector: str | None = None) -> None:
        """Add up how long the selections took."""
        for job in jobs:
            for name, seconds in noted_seconds(job).items():
                key = selector or name
                self.seconds[key] = self.seconds.get(key, 0.0) + seconds


def publish(folder: Path, page: str, workspace: str, table: list[dict[str, Any]], description: str) -> None:
    """Show a page in the Prefect UI: its text and charts as one artifact, and its table as another."""
    publish_page(folder, artifact_key(page, workspace), description)
    with or_warn():
        create_table_artifact(table, key=artifact_key(f"{page}-table", workspace), description=description)
