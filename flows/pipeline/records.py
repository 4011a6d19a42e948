"""Write down what a run did: its record, its summary, and the catalog of the workspace."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path

from fineweb_mask.flows.pipeline.run import Run
from fineweb_mask.flows.pipeline.selection import SelectedShards
from fineweb_mask.flows.summary import RunSummary
from fineweb_mask.tasks.registry import STAGES
from fineweb_mask.tasks.select import SelectJob
from fineweb_mask.tasks.storage.atomic import disk_errors_explained
from fineweb_mask.tasks.workspace.listing import update_index
from fineweb_mask.tasks.workspace.records.counts import mean_terms
from fineweb_mask.tasks.workspace.records.runs import QuarantinedShard, RunRecord, code_commit
from fineweb_mask.tasks.workspace.references import NO_FILE, ShardFiles, StageFile

BEFORE_SELECTION = STAGES[: STAGES.index(SelectJob.stage.shown_as)]
"""Stages whose new files the masks of a catalog may not be of."""


@contextmanager
def recorded(run: Run, flow: str, flow_run: str | None = None, *, keep: bool = True) -> Iterator[None]:
    """Write the record of a run when the block ends, also with the error that ended it; then the index and the catalog.

    Parameters
    ----------
    run
        The run.
    flow
        Name of the flow.
    flow_run
        Prefect's id of the flow run, if Prefect runs it.
    keep
        See `update_catalog`.
    """
    settings = run.settings
    record = RunRecord(
        flow=flow,
        select_ratio=settings.selection.select_ratio,
        lamb=settings.selection.lamb,
        solver=settings.selection.solver,
        recipe=settings.model_dump(mode="json", exclude={"workspace"}),
        source={} if run.source is None else run.source.model_dump(),
        flow_run=flow_run,
        version=version("fineweb-mask"),
        commit=code_commit()["commit"],
    )
    try:
        yield
        update_index(run.workspace)
        _describe(record, run)
    except BaseException as error:
        record.status = "failed" if isinstance(error, Exception) else "interrupted"
        record.error = f"{type(error).__name__}: {error}"
        with suppress(OSError):  # report the error that ended the run
            _end(record, run)
        raise
    _end(record, run)
    if run.workspace.url is None:
        update_catalog(run, keep=keep)


def _end(record: RunRecord, run: Run) -> None:
    record.stages_run = [stage.stage for stage in run.stages if stage.cached < stage.files]
    record.stages_cached = [stage.stage for stage in run.stages if stage.cached == stage.files]
    record.set_aside = [QuarantinedShard(shard=shard, reason=reason) for shard, reason in run.quarantined.items()]
    if record.status == "done" and record.set_aside:
        record.status = "quarantined"
    record.end(run.workspace)


def _describe(record: RunRecord, run: Run) -> None:
    """Add what was selected, or found to be selected, to the record, if the run got that far."""
    selecting = [file for job, file in run.found[SelectJob.stage.shown_as] if isinstance(job, SelectJob)]
    groups = sorted((file for file in selecting if file is not None), key=lambda file: file.name)
    if groups:
        counts = SelectedShards([shard for shard in shard_files(run) if shard.masks.path], groups).counts
        record.documents_in = counts.documents_in
        record.documents_selected = counts.selected
        record.tokens_in = counts.tokens_in
        record.tokens_selected = counts.tokens_selected
        record.objective, _ = mean_terms(groups)


def summarize(run: Run, selection: SelectedShards, exports: Mapping[str, Path]) -> RunSummary:
    """Return the summary of a run that ended with the report, and publish it in the Prefect UI."""
    counts = selection.counts
    objective, terms = mean_terms(selection.groups)
    dataset = run.output.display_path
    summary = RunSummary.of(
        run.workspace,
        run.quarantined,
        run.stages,
        dataset=dataset,
        card=f"{dataset}/README.md",
        exports={name: run.workspace.display_path(folder) for name, folder in exports.items()},
        report=run.workspace.reports / "index.html",
        documents_in=counts.documents_in,
        documents_kept=counts.selected,
        not_selected=counts.not_selected,
        dropped=counts.dropped,
        counts=counts,
        objective=objective,
        terms=terms,
        blocks=len(selection.blocks),
    )
    if run.ui is not None:
        run.ui.publish(summary, run.workspace.reports)
    return summary


def shard_files(run: Run) -> list[ShardFiles]:
    """Return the files of every shard that is not quarantined, as far as the stages have come."""

    def by_shard(stage: str) -> dict[str, StageFile]:
        return {job.name: file for job, file in run.found[stage] if file is not None}

    documents, scores, vectors = map(by_shard, ("ingest", "score", "embed"))
    selecting = [job for job, file in run.found["select"] if file is not None and isinstance(job, SelectJob)]
    masks = {name: file for job in selecting for name, file in run.files_of(job).items()}
    return [
        ShardFiles(
            documents=documents[name],
            scores=scores.get(name, NO_FILE),
            embeddings=vectors.get(name, NO_FILE),
            duplicates=run.duplicates.get(name, NO_FILE),
            masks=masks.get(name, NO_FILE),
        )
        for name in run.shards
        if name in documents and name not in run.quarantined
    ]


def update_catalog(run: Run, *, keep: bool) -> None:
    """Write the catalog of a run that is the workspace's last (`keep`) and came to the selection.

    After another, a catalog that may be stale is removed, and `sql` writes one when it is asked for.
    """
    from fineweb_mask.tasks.catalog.views import catalog_path, write_catalog  # at the top, DuckDB reports leaks

    workspace = run.workspace
    if keep and run.found[SelectJob.stage.shown_as]:
        with workspace.alone(), disk_errors_explained(workspace.root, "the catalog"):
            write_catalog(workspace, shard_files(run), run.losses)
    elif keep or any(one.stage in BEFORE_SELECTION and one.cached < one.files for one in run.stages):
        catalog_path(workspace).unlink(missing_ok=True)
