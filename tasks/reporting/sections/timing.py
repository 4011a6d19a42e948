"""Show how long every stage took."""

from collections.abc import Sequence

from pydantic import BaseModel

from fineweb_mask.tasks.reporting.page import Column, Section, Table


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
    columns = [
        Column("stage"),
        Column("files", "count"),
        Column("cached", "count"),
        Column("seconds, this run", "seconds"),
        Column("seconds, all runs", "seconds"),
        Column("documents", "count"),
        Column("documents/s", "rate"),
    ]
    note = "All runs: the time to build all files behind this dataset, summed over tasks."
    return Section("Time by stage", tables=[Table("Stages", columns, rows, note=note, wide=True)])
