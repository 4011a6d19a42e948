"""The record that every run leaves in its workspace."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version

from prefect.context import FlowRunContext

from flows.curation import Curation
from flows.run import Run
from models.settings import PipelineSettings
from tasks.accounting import mean_terms
from tasks.provenance import code_commit
from tasks.run_record import RunRecord, SetAside


@contextmanager
def recorded(run: Run, settings: PipelineSettings) -> Iterator[RunRecord]:
    """Write the record of a run when the block ends, also with the error that ended it."""
    context = FlowRunContext.get()
    record = RunRecord(
        flow=context.flow.name if context and context.flow else "curate",
        select_ratio=settings.selection.select_ratio,
        lamb=settings.selection.lamb,
        solver=settings.selection.solver,
        recipe=settings.model_dump(mode="json", exclude={"workspace"}),
        flow_run=str(context.flow_run.id) if context and context.flow_run else None,
        version=version("fineweb-mask"),
        commit=code_commit()["commit"],
    )
    try:
        yield record
    except BaseException as error:
        record.status = "failed" if isinstance(error, Exception) else "interrupted"
        record.error = f"{type(error).__name__}: {error}"
        with suppress(OSError):  # the error that ended the run is the one to hear of
            _end(record, run)
        raise
    _end(record, run)


def _end(record: RunRecord, run: Run) -> None:
    record.stages_run = [stage.stage for stage in run.in_order if stage.cached < stage.files]
    record.stages_cached = [stage.stage for stage in run.in_order if stage.cached == stage.files]
    record.set_aside = [SetAside(shard=shard, reason=reason) for shard, reason in run.quarantined.items()]
    if record.status == "done" and record.set_aside:
        record.status = "quarantined"
    record.end(run.workspace)


def describe(record: RunRecord, curation: Curation) -> None:
    """Enter what was selected into the record of a run that came so far."""
    if curation.masks:
        counts = curation.counts
        record.documents_in = counts.documents_in
        record.documents_selected = counts.selected
        record.tokens_in = counts.tokens_in
        record.tokens_selected = counts.tokens_selected
        record.objective, _ = mean_terms(curation.groups)
