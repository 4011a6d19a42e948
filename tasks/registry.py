"""List the stages of the pipeline: the one table that every other table of stages is read from.

To add a stage, write its module in `tasks/` and enter its task here.
"""

from fineweb_mask.tasks.dataset.partition import write_partition
from fineweb_mask.tasks.dedup.duplicates import dedup
from fineweb_mask.tasks.dedup.excluded import exclude
from fineweb_mask.tasks.dedup.sketch import sketch
from fineweb_mask.tasks.embed import embed
from fineweb_mask.tasks.exclusion import list_excluded
from fineweb_mask.tasks.export import export
from fineweb_mask.tasks.fit import fit_classifier, fit_encoder, fit_statistics, fit_targets
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
from fineweb_mask.tasks.workspace.job import ProductJob, StageTask
from fineweb_mask.tasks.workspace.records.counts import Amount, Counts

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
    if not issubclass(one.job_type, ProductJob)
    for folder in one.stage.folders
}
"""Folders of the files of shards, and what the stages are shown as that write to each."""

DOCUMENTS = {task.stage.name: task.stage.documents for task in PIPELINE}
"""How many documents enter a stage with a file, by the stage's name; None if its rows are no documents."""


def amounts_through(counts: Counts) -> dict[str, tuple[Amount, Amount]]:
    """Return, by stage, how many documents and tokens entered and left; without deduplication that dropped nothing."""
    found = {}
    for task in PIPELINE:
        if task.stage.counts is not None:
            before, after = (counts.amounts[state] for state in task.stage.counts)
            if task.stage.documents is not None or before != after:
                found[task.stage.name] = (before, after)
    return found
