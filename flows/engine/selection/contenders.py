"""Run several selectors over the same blocks and ranges, for the sweep and the comparison, and publish their pages."""

from functools import partial
from pathlib import Path
from typing import Any

from prefect.artifacts import create_table_artifact
from prefect.logging import get_run_logger

from fineweb_mask.flows.display.prefect_ui import artifact_key, or_warn, publish_page
from fineweb_mask.flows.engine.scheduler import Scheduler
from fineweb_mask.models.settings import PipelineSelectionSettings
from fineweb_mask.tasks.comparison.variants import RangesJob, VariantJob, noted_seconds
from fineweb_mask.tasks.inference.scorers import QualityModel
from fineweb_mask.tasks.selection.groups import group_name, grouped, remembered_groups
from fineweb_mask.tasks.workspace.references import StageFile
from fineweb_mask.tasks.workspace.shard_files import ShardFiles


class SelectorRuns:
    """The selections of several selectors over the same groups of shards.

    Parameters
    ----------
    scheduler
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
        scheduler: Scheduler,
        shards: list[ShardFiles],
        settings: PipelineSelectionSettings,
        targets: StageFile | None = None,
        scorer: QualityModel | None = None,
    ) -> None:
        self.groups = grouped(shards, settings, remembered_groups(scheduler.workspace, settings))
        self.files: dict[str, list[StageFile]] = {}  # by selector, of every group
        self.masks: dict[str, list[StageFile]] = {}  # by selector, of every shard
        self.frontiers: list[StageFile] = []  # of every group
        self.seconds: dict[str, float] = {}  # by selector or value of lamb
        self._settings = settings
        self._targets, self._scorer = targets, scorer
        self._scheduler = scheduler
        self._root = scheduler.workspace.address
        self._ranges: dict[str, StageFile | None] = {}

    def find_ranges(self) -> None:
        """Find the ranges of the terms of every block."""
        self._scheduler.expect("scale", len(self.groups))
        for group in self.groups:
            job = RangesJob(root=self._root, shards=group, settings=self._settings)
            self._scheduler.add(job, partial(self._ranges.__setitem__, job.name))
        self._scheduler.finish()

    def sweep(self, lambs: tuple[float, ...]) -> None:
        """Select from every group at every weight of quality."""
        self._scheduler.expect("contend", len(self.groups))
        for group in self.groups:
            ranges = self._ranges.get(group_name(group))
            job = VariantJob(
                root=self._root,
                shards=group,
                settings=self._settings,
                selector="mean_field",
                lambs=lambs,
                ranges=ranges,
            )
            self._scheduler.add(job, partial(self._on_swept, job))
        self._scheduler.finish(at_once=1)

    def run(self, selectors: list[str]) -> None:
        """Select from every group by every selector, one job at a time, because their times are compared."""
        self._scheduler.expect("contend", len(selectors) * len(self.groups))
        for selector in selectors:
            self.files[selector], self.masks[selector] = [], []
            for group in self.groups:
                ranges = self._ranges.get(group_name(group))
                job = VariantJob(
                    root=self._root,
                    shards=group,
                    settings=self._settings,
                    selector=selector,
                    ranges=ranges,
                    targets=self._targets,
                    scorer=self._scorer,
                )
                self._scheduler.add(job, partial(self._on_selected, job))
            get_run_logger().info("contend: %s selects", selector)
            self._scheduler.finish(at_once=1)

    def _on_swept(self, job: VariantJob, file: StageFile | None) -> None:
        if file is not None:
            self.frontiers.append(file)
            for name, seconds in noted_seconds(job).items():
                self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def _on_selected(self, job: VariantJob, file: StageFile | None) -> None:
        if file is not None:
            self.files[job.selector].append(file)
            self.masks[job.selector] += job.shard_files() or []
            for seconds in noted_seconds(job).values():
                self.seconds[job.selector] = self.seconds.get(job.selector, 0.0) + seconds


def publish(folder: Path, page: str, workspace: str, table: list[dict[str, Any]], description: str) -> None:
    """Show a page in the Prefect UI: its text and charts as one artifact, and its table as another."""
    publish_page(folder, artifact_key(page, workspace), description)
    with or_warn():
        create_table_artifact(table, key=artifact_key(f"{page}-table", workspace), description=description)
