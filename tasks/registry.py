"""List the stages of the pipeline: the one table that every other table of stages is read from.

To add a stage, write its module in `tasks/` and enter its task here.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING, Literal

from fineweb_mask.tasks.dataset.partition import write_partition
from fineweb_mask.tasks.dedup.duplicates import dedup
from fineweb_mask.tasks.dedup.excluded import exclude
from fineweb_mask.tasks.dedup.sketch import sketch
from fineweb_mask.tasks.embed import embed
from fineweb_mask.tasks.exclusion import list_excluded
from fineweb_mask.tasks.export import export
from fineweb_mask.tasks.fit.models import fit_classifier, fit_encoder, fit_statistics, fit_targets
from fineweb_mask.tasks.ingest import ingest
from fineweb_mask.tasks.losses import count_losses
from fineweb_mask.tasks.materialize import materialize
from fineweb_mask.tasks.report import report
from fineweb_mask.tasks.score import score
from fineweb_mask.tasks.select import select
from fineweb_mask.tasks.selection.cells import (
    divide_shard,
    draw_sample,
    fit_centres,
    plan_selection,
    route,
    select_cell,
)
from fineweb_mask.tasks.selection.groups import divide_budget
from fineweb_mask.tasks.witness.job import measure_teaching
from fineweb_mask.tasks.workspace.job import ShardJob, Stage, StageTask
from fineweb_mask.tasks.workspace.records.counts import Amount, Counts
from fineweb_mask.tasks.workspace.references import StageFile

PIPELINE: tuple[StageTask, ...] = (
    ingest,
    sketch,
    dedup,
    exclude,
    list_excluded,
    fit_classifier,
    fit_statistics,
    fit_encoder,
    score,
    embed,
    count_losses,
    draw_sample,
    fit_centres,
    route,
    plan_selection,
    divide_shard,
    select_cell,
    fit_targets,
    divide_budget,
    select,
    write_partition,
    materialize,
    export,
    measure_teaching,
    report,
)
"""The stages of the pipeline, in the order in which a document passes through them."""

STAGES = tuple(dict.fromkeys(task.stage.shown_as for task in PIPELINE))
"""What the pipeline's stages are counted and shown as; everything that is fitted is one, and what makes the dataset."""

STAGE_FOLDERS = {
    folder: {task.stage.shown_as for task in PIPELINE if folder in task.stage.folders}
    for one in PIPELINE
    if issubclass(one.job_type, ShardJob)
    for folder in one.stage.folders
}
"""Folders of the files of shards, and what the stages are shown as that write to each."""

REFRESHED = tuple(task.stage.name for task in PIPELINE if not task.stage.label)
"""Stages that can be built again although their files are current, with all that is shown under their name.

What is fitted has its own option, `refit`.
"""

SELECTION_INPUTS = frozenset(REFRESHED[: REFRESHED.index(select.stage.name)])
"""Stages that the selection reads from."""

if TYPE_CHECKING:
    Refreshed = str
else:  # a form in the Prefect UI lists the choices
    Refreshed = Literal[REFRESHED]


def stage_names() -> list[str]:
    """Return the names of all stages, those of the comparison included."""
    from fineweb_mask.tasks.comparison.page import write_comparison_page
    from fineweb_mask.tasks.comparison.variants import find_ranges, select_variant
    from fineweb_mask.tasks.witness.tune import tune

    pages = (find_ranges, select_variant, tune, write_comparison_page)
    return [task.stage.name for task in (*PIPELINE, *pages)]


def stages_shown_as(name: str) -> list[Stage]:
    """Return the stages that are counted and shown under a name."""
    return [task.stage for task in PIPELINE if task.stage.shown_as == name]


def refreshed_by(names: Collection[str]) -> frozenset[str]:
    """Return the names of the stages that are built again with those of these names.

    A new selection may be another one, of the same key: the dataset and the report are written again with it.
    """
    found = {stage.name for name in names for stage in stages_shown_as(name) if not stage.kept}
    if select.stage.shown_as in names:
        found |= {stage.name for one in (materialize, report) for stage in stages_shown_as(one.stage.shown_as)}
    return frozenset(found)


def documents_through(file: StageFile) -> tuple[int, int] | None:
    """Return how many documents entered and left a stage with this file; None if its rows are no documents."""
    stages = (task.stage for task in PIPELINE if task.stage.name == file.stage)
    return next((stage.documents(file) for stage in stages if stage.documents is not None), None)


def amounts_through(counts: Counts) -> dict[str, tuple[Amount, Amount]]:
    """Return, by stage, how many documents and tokens entered and left; without deduplication that dropped nothing."""
    found = {}
    for task in PIPELINE:
        if task.stage.counts is not None:
            before, after = (counts.amounts[state] for state in task.stage.counts)
            if task.stage.documents is not None or before != after:
                found[task.stage.name] = (before, after)
    return found
