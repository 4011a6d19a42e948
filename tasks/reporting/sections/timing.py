"""Show how long every stage took."""

from collections.abc import Sequence

from pydantic import BaseModel

from fineweb_mask.tasks.reporting import charts
from fineweb_mask.tasks.reporting.charts import Bar
from fineweb_mask.tasks.reporting.page import Column, Figure, Section, Table


class StageTime(BaseModel):
    """Time and throughput of a stage."""

    stage: str
    files: int
    cached: int = 0  # files of earlier runs
    seconds: float = 0.0  # of this run, summed over its tasks
    built_seconds: float = 0.0  # of all runs that wrote the files, including this one
    documents: int | None = None  # processed


def time_by_stage(stages: Sequence[StageTime]) -> Section:
    """Show the time and throughput of every stage."""
    rows = []
    for stage in stages:
        rate = stage.documents / stage.built_seconds if stage.documents and stage.built_seconds else None
        amounts = [stage.files, stage.cached, stage.seconds, stage.built_seconds, stage.documents, rate]
        rows.append([stage.stage, *amounts])
    total = sum(stage.built_seconds for stage in stages)
    bars = [Bar(stage.stage, stage.built_seconds) for stage in stages]
    note = f"n = {sum(stage.files for stage in stages):,} files in {total:,.1f} s"
    figure = Figure(
        "time",
        charts.bars("Time by stage", "seconds, summed over tasks", bars, note=note, form="{:,.1f}".format),
        alt=f"All stages together took {total:,.1f} seconds.",
        caption="The time to build all files behind this dataset, including those of earlier runs.",
    )
    columns = [
        Column("stage"),
        Column("files", "count"),
        Column("cached", "count"),
        Column("seconds, this run", "seconds"),
        Column("seconds, all runs", "seconds"),
        Column("documents", "count"),
        Column("documents/s", "rate"),
    ]
    return Section("Time by stage", figures=[figure], tables=[Table("Stages", columns, rows, wide=True)])
