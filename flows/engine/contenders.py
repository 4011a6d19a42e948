"""What a sweep and a comparison share: contenders over the blocks of a corpus, and how their pages are shown."""

from functools import partial
from pathlib import Path
from typing import Any

from prefect.artifacts import create_table_artifact
from prefect.logging import get_run_logger

from fineweb_mask.flows.display.prefect_ui import or_warn, publish_page
from fineweb_mask.flows.engine.scheduler import Run
from fineweb_mask.models.settings import PipelineSelectionSettings
from fineweb_mask.tasks.selection import contenders
from fineweb_mask.tasks.selection.blocks import SelectionShard, group_name, grouped
from fineweb_mask.tasks.selection.contenders import SelectorJob
from fineweb_mask.tasks.workspace.workspace import StageFile


class Contest:
    """Plans the contenders over the groups of shards, once the ranges of each group's terms are known.

    Parameters
    ----------
    run
        Runs the jobs.
    shards
        What is selected from.
    settings
        What all have in common.
    """

    def __init__(self, run: Run, shards: list[SelectionShard], settings: PipelineSelectionSettings) -> None:
        self.settings = settings
        self.groups = grouped(shards, settings)
        self.files: dict[str, list[StageFile]] = {}  # by selector, of every group
        self.masks: dict[str, list[StageFile]] = {}  # by selector, of every shard
        self.seconds: dict[str, float] = {}  # by selector
        self._run = run
        self._scales: dict[str, StageFile | None] = {}

    def find_scales(self) -> None:
        """Find the ranges of the terms."""
        shards = [shard for group in self.groups for shard in group]
        jobs = contenders.plan_scale(self._run.workspace, shards, self.settings)
        self._run.expect("scale", len(jobs))
        for job in jobs:
            self._run.add("scale", job, partial(self._scales.__setitem__, job.name))
        self._run.work()

    def scale(self, group: list[SelectionShard]) -> StageFile | None:
        """Return the ranges of a group; None with a budget of tokens."""
        return self._scales.get(group_name(group))

    def run_selector(self, selectors: list[str]) -> None:
        """Have every selector select from every group, one after another: their times are compared."""
        self._run.expect("contend", len(selectors) * len(self.groups))
        for selector in selectors:
            self.files[selector], self.masks[selector] = [], []
            for group in self.groups:
                job = contenders.plan_selector(self._run.workspace, group, self.settings, selector, self.scale(group))
                self._run.add("contend", job, partial(self._contended, job))
            get_run_logger().info("contend: %s selects", selector)
            self._run.work(at_once=1)

    def _contended(self, job: SelectorJob, file: StageFile | None) -> None:
        if file is not None:
            self.files[job.selector].append(file)
            self.masks[job.selector] += job.shard_files() or []
            for spent in contenders.noted_seconds(job.seconds_path, job.key).values():
                self.seconds[job.selector] = self.seconds.get(job.selector, 0.0) + spent


def publish(folder: Path, key: str, table: list[dict[str, Any]], description: str) -> None:
    """Show a page in the Prefect UI: its text and pictures as one artifact, its table as another, which is searched."""
    publish_page(folder, key, description)
    with or_warn():
        create_table_artifact(table, key=f"{key}-table", description=description)
