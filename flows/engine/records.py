"""Record what a run did: its record, its summary, and the catalog of the workspace."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version

from fineweb_mask.flows.engine.planning.plan import Plan
from fineweb_mask.flows.engine.registry import SELECTION_INPUTS
from fineweb_mask.flows.engine.scheduler import Scheduler
from fineweb_mask.flows.summary import RunSummary
from fineweb_mask.models.settings import PipelineSettings
from fineweb_mask.tasks.workspace.records.build_info import code_commit
from fineweb_mask.tasks.workspace.records.counts import mean_terms
from fineweb_mask.tasks.workspace.records.runs import QuarantinedShard, RunRecord
from fineweb_mask.tasks.workspace.workspace import Workspace, disk_errors_explained


@contextmanager
def recorded(
    scheduler: Scheduler, settings: PipelineSettings, flow: str, flow_run: str | None = None
) -> Iterator[RunRecord]:
    """Write the record of a run when the block ends, also with the error that ended it.

    Parameters
    ----------
    scheduler, settings
        What runs the jobs of the run, and its recipe.
    flow
        Name of the flow.
    flow_run
        Prefect's id of the flow run, if Prefect runs it.
    """
    record = RunRecord(
        flow=flow,
        select_ratio=settings.selection.select_ratio,
        lamb=settings.selection.lamb,
        solver=settings.selection.solver,
        recipe=settings.model_dump(mode="json", exclude={"workspace"}),
        flow_run=flow_run,
        version=version("fineweb-mask"),
        commit=code_commit()["commit"],
    )
    try:
        yield record
    except BaseException as error:
        record.status = "failed" if isinstance(error, Exception) else "interrupted"
        record.error = f"{type(error).__name__}: {error}"
        with suppress(OSError):  # report the error that ended the run
            _end(record, scheduler)
        raise
    _end(record, scheduler)


def _end(record: RunRecord, scheduler: Scheduler) -> None:
    record.stages_run = [stage.stage for stage in scheduler.in_order if stage.cached < stage.files]
    record.stages_cached = [stage.stage for stage in scheduler.in_order if stage.cached == stage.files]
    record.set_aside = [QuarantinedShard(shard=shard, reason=reason) for shard, reason in scheduler.quarantined.items()]
    if record.status == "done" and record.set_aside:
        record.status = "quarantined"
    record.end(scheduler.workspace)


def describe(record: RunRecord, plan: Plan) -> None:
    """Add what was selected to the record, if the run got that far."""
    if plan.masks:
        counts = plan.counts
        record.documents_in = counts.documents_in
        record.documents_selected = counts.selected
        record.tokens_in = counts.tokens_in
        record.tokens_selected = counts.tokens_selected
        record.objective, _ = mean_terms(plan.groups)


def summarize(run: Scheduler, plan: Plan) -> RunSummary:
    """Return the summary of a run that ended with the report."""
    counts = plan.counts
    objective, terms = mean_terms(plan.groups)
    dataset = plan.output.display_path
    return RunSummary.of(
        run.workspace,
        run.quarantined,
        run.in_order,
        dataset=dataset,
        card=f"{dataset}/README.md",
        exports={name: run.workspace.display_path(folder) for name, folder in plan.exports.items()},
        report=run.workspace.reports / "index.html",
        documents_in=counts.documents_in,
        documents_kept=counts.selected,
        not_selected=counts.not_selected,
        dropped=counts.dropped,
        counts=counts,
        busy_seconds=run.busy_seconds,
        objective=objective,
        terms=terms,
        blocks=len(plan.blocks),
    )


def update_catalog(workspace: Workspace, scheduler: Scheduler, plan: Plan, *, keep: bool) -> None:
    """Write the catalog of a run that is saved as the workspace's last (`keep`); else remove one that is stale now."""
    from fineweb_mask.tasks.catalog.views import catalog_path, write_catalog  # at the top, DuckDB reports leaks

    if keep:
        if plan.is_prepared and not plan.masks:  # a stage was run by itself: the masks may be stale now
            plan.select()
        with workspace.alone(), disk_errors_explained(workspace.root, "the catalog"):
            write_catalog(workspace, plan.catalog_files(scheduler.quarantined))
    elif any(stage.cached < stage.files for stage in scheduler.in_order if stage.stage in SELECTION_INPUTS):
        catalog_path(workspace).unlink(missing_ok=True)  # the masks may be stale now; `sql` rebuilds it on demand
