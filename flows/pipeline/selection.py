"""Select from the prepared shards: from blocks of documents that are alike, or that follow each other."""

from typing import Any, NamedTuple

from fineweb_mask.flows.pipeline.fit import Models, fit_targets
from fineweb_mask.flows.pipeline.run import Files, PerShard, Run
from fineweb_mask.tasks.comparison.variants import reads_targets
from fineweb_mask.tasks.select import SelectJob
from fineweb_mask.tasks.selection.blocks import grouped
from fineweb_mask.tasks.selection.cells import (
    DivideJob,
    FitCentresJob,
    PlanJob,
    RouteJob,
    SampleJob,
    cell_jobs,
    sample_size,
)
from fineweb_mask.tasks.selection.groups import SharesJob
from fineweb_mask.tasks.workspace.job import BadShardError
from fineweb_mask.tasks.workspace.records.counts import Counts, account, why_none_is_left
from fineweb_mask.tasks.workspace.references import ShardFiles, StageFile

GROUP_SHARDS, GROUP_DOCUMENTS = 256, 1 << 24
"""Most of what is selected from together, in cells."""
LISTED = 3
"""Most reasons in one message."""


class Prepared(NamedTuple):
    """What a selection reads."""

    shards: list[ShardFiles]  # those that no stage found bad, in the order of the source
    models: Models
    documents: Files  # also of shards that a later stage found bad


class SelectedShards(NamedTuple):
    """What was selected."""

    shards: list[ShardFiles]  # with their masks, in the order of the source
    groups: list[StageFile]  # what was recorded of each group of shards, in the order of their names

    @property
    def blocks(self) -> list[dict[str, Any]]:
        """What was recorded of every block."""
        return [block for group in self.groups for block in group.details["blocks"]]

    @property
    def counts(self) -> Counts:
        """The document and token counts of the shards."""
        return account([shard.documents for shard in self.shards], self.groups)


def prepared(run: Run, documents: Files, models: Models, scores: Files, vectors: Files, duplicates: Files) -> Prepared:
    """Return the shards that every stage so far has made its file of.

    Raises
    ------
    BadShardError
        If there is none; the message says why.
    """
    shards = [
        ShardFiles(
            documents=documents[name],
            scores=scores[name],
            embeddings=vectors[name],
            duplicates=duplicates[name],
        )
        for name in run.shards
        if name in scores and name in vectors and name in duplicates
    ]
    run.require_all(PerShard({shard.name: shard for shard in shards}))
    if not shards:
        raise BadShardError(f"no shard could be scored and embedded: {_reasons(run)}")
    return Prepared(shards, models, documents)


def check_any_document(run: Run, documents: Files) -> None:
    """Check that ingest left something to go on with.

    Raises
    ------
    BadShardError
        If it did not; the message says why.
    """
    if not documents:
        run.require_all(documents)
        raise BadShardError(f"no source file could be read: {_reasons(run)}")
    if not any(file.rows for file in documents.values()):
        reason = why_none_is_left(list(documents.values()))
        raise BadShardError(reason)


def select(run: Run, prepared: Prepared) -> SelectedShards:
    """Select documents from every block."""
    settings = run.settings.selection
    if settings.by_likeness and sum(shard.rows for shard in prepared.shards) > settings.block_size:
        jobs = _jobs_by_likeness(run, prepared.shards, prepared.models.identities)
    else:
        targets = None
        if reads_targets([settings.solver]):
            targets = fit_targets(run, prepared.documents, prepared.models)
        common: dict[str, Any] = {"root": run.root, "settings": settings}
        groups = grouped(prepared.shards, settings.block_size)
        jobs = [SelectJob(shards=group, targets=targets, **common) for group in groups]
        if settings.groups is not None and settings.groups.shares != "proportional":
            jobs = _with_shares(run, prepared.shards, jobs)
    selected = run.all(jobs)
    masks = {name: file for job in jobs for name, file in run.files_of(job).items()}
    shards = [shard.model_copy(update={"masks": masks[shard.name]}) for shard in prepared.shards]
    return SelectedShards(shards, sorted(selected, key=lambda group: group.name))


def _with_shares(run: Run, shards: list[ShardFiles], jobs: list[SelectJob]) -> list[SelectJob]:
    """Return the jobs with the shares of the documents' groups, which are found first where a job is not done."""
    dividing = SharesJob(shards=shards, root=run.root, settings=run.settings.selection)
    selecting = [job.model_copy(update={"shares": dividing.reference()}) for job in jobs]
    if any(run.done(job) is None for job in selecting):  # else the shares may have been removed
        run.one(dividing)
    return selecting


def _reasons(run: Run) -> str:
    bad = list(run.quarantined.values())
    return "; ".join(bad[:LISTED]) + (f"; and {len(bad) - LISTED:,} more" if len(bad) > LISTED else "")


def _jobs_by_likeness(run: Run, shards: list[ShardFiles], models: list[str]) -> list[SelectJob]:
    """Return the jobs that gather the selections from cells of documents that are alike, which are made first.

    What was learned of the corpus in an earlier run stays as it is; shards that have come since are divided by it.
    """
    settings, rows = run.settings.selection, sum(shard.rows for shard in shards)
    common: dict[str, Any] = {"root": run.root, "settings": settings}
    rate = sample_size(rows, settings.block_size) / rows
    samples = [SampleJob(shard=shard, rate=rate, **common) for shard in shards]
    fitting = FitCentresJob(models=models, force=FitCentresJob.stage.name in run.refit, **common)
    if run.done(fitting) is None:
        fitting = fitting.model_copy(update={"samples": tuple(run.all(samples)), "documents": rows})
    centres = run.one(fitting)
    routes = run.all([RouteJob(shard=shard, centres=centres, **common) for shard in shards])
    refit = PlanJob.stage.name in run.refit
    planning = PlanJob(models=models, centres=centres, routes=tuple(routes), force=refit, **common)
    if run.done(planning) is None:
        planning = planning.model_copy(update={"samples": tuple(run.all(samples))})
    plan = run.one(planning)
    by_name = {
        shard.name: DivideJob(shard=shard, route=file, **common) for shard, file in zip(shards, routes, strict=True)
    }
    selecting = []
    for number, group in enumerate(grouped(shards, GROUP_DOCUMENTS, GROUP_SHARDS)):
        divided = [by_name[shard.name] for shard in group]
        cells = cell_jobs(run.root, settings, number, divided, plan)
        job = SelectJob(shards=group, cells=tuple(cell.reference() for cell in cells), **common)
        if run.done(job) is None:
            missing = {file.name for cell in cells if run.done(cell) is None for file in cell.divided}
            run.all([one for one in divided if one.name in missing])
            run.all(cells)
        selecting.append(job)
    return selecting
