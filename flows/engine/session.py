"""Hold a workspace for one run: check the inputs, lock, record, and stop what still runs if it fails."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from prefect.context import FlowRunContext
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from fineweb_mask.flows.display.prefect_ui import UiListener, published_to_ui
from fineweb_mask.flows.engine.plan import Curation, PretrainedModels
from fineweb_mask.flows.engine.scheduler import Run
from fineweb_mask.models.forward.device import choose_devices
from fineweb_mask.models.runtime.stopping import clear_stop_request, request_stop
from fineweb_mask.models.settings import PipelineSettings
from fineweb_mask.tasks import embed
from fineweb_mask.tasks.dataset.output import Output
from fineweb_mask.tasks.inference.gpu import offer_slots
from fineweb_mask.tasks.inference.scorers import check_scorers
from fineweb_mask.tasks.inference.scoring_pool import end_scoring_processes
from fineweb_mask.tasks.source.column_checks import check_columns
from fineweb_mask.tasks.source.discovery import SourceShard, discover
from fineweb_mask.tasks.storage.atomic import remove_file
from fineweb_mask.tasks.workspace.build_info import code_commit
from fineweb_mask.tasks.workspace.checkpoints import discard_finished
from fineweb_mask.tasks.workspace.counts import mean_terms
from fineweb_mask.tasks.workspace.job import BadShardError
from fineweb_mask.tasks.workspace.runs import LastRun, RunRecord, SetAside
from fineweb_mask.tasks.workspace.workspace import Workspace

if TYPE_CHECKING:
    from prefect.futures import PrefectFuture

Refit = Literal["encoder", "quality"]
CATALOGUED = frozenset({"ingest", "dedup", "score", "embed", "score_embed"})
"""Stages whose files the catalog shows beside the masks that were made of them."""


@contextmanager
def open_session(
    settings: PipelineSettings,
    *,
    refit: Sequence[Refit] | None = None,
    refresh: Iterable[str] | None = None,
    scope: frozenset[str] | None = None,
    keep: bool = True,
) -> Iterator[tuple[Run, Curation, UiListener]]:
    """Hold the workspace, with what runs jobs there and what plans them; stop what still runs if the block fails.

    At the end the run is recorded, whatever came of it. With `keep`, the recipe becomes that of the workspace's last
    run (without, it does if there was none), and the catalog shows what is there now, if the run did not fail.
    """
    shards = check_inputs(settings)
    opened_workspace = Workspace(settings.workspace, settings.engine.scratch)
    with opened_workspace.exclusive() as workspace, published_to_ui() as shown:
        run = Run(
            workspace,
            quarantine=settings.ingest.on_bad_shard == "quarantine",
            at_once=workers(settings),
            refresh=frozenset(refresh or []),
            scope=scope,
        )
        discard_finished(workspace)
        forget_fitted(workspace, refit or [])
        if keep or not workspace.holds(LastRun.path(workspace)):
            LastRun(settings=settings, folder=str(Path.cwd())).keep(workspace)
        clear_stop_request()
        offer_slots()
        with recorded(run, settings) as record:
            try:
                curation = Curation(run, workspace, settings, shards, PretrainedModels.of(settings))
                yield run, curation, shown
            except BaseException:
                request_stop()  # Prefect waits for the tasks that still run
                raise
            finally:
                end_scoring_processes()
            describe(record, curation)
        if workspace.url is None:
            _catalogue(workspace, run, curation, keep=keep)


def _catalogue(workspace: Workspace, run: Run, curation: Curation, *, keep: bool) -> None:
    """Have the catalog show what a run leaves behind."""
    from fineweb_mask.tasks.workspace.catalog import (  # at the top, DuckDB complains of leaks at the process's end
        catalog_path,
        write_catalog,
    )

    if keep:
        if curation.is_scored and not curation.masks:  # a stage was run by itself: do the masks still belong to it all?
            curation.plan_selection()
        write_catalog(workspace, curation.catalogued(run.quarantined))
    elif any(stage.cached < stage.files for stage in run.in_order if stage.stage in CATALOGUED):
        catalog_path(workspace).unlink(missing_ok=True)  # do the masks still belong? `sql` looks, and writes it anew


def prepare(run: Run, curation: Curation) -> None:
    """Ingest, score and embed all shards, and find the duplicates across them.

    Raises
    ------
    BadShardError
        If there is nothing to select from.
    """
    curation.plan_documents()
    run.work()
    end_scoring_processes()
    _check_scored(run, curation)


def _check_scored(run: Run, curation: Curation) -> None:
    reasons = "; ".join(run.quarantined.values())
    if not curation.documents:
        raise BadShardError(f"no source file could be read: {reasons}")
    if not any(file.rows for file in curation.documents.values()):
        raise BadShardError("no document passed the ingest settings: look at min_chars, languages and text_column")
    if not curation.scored:
        raise BadShardError(f"no shard could be scored and embedded: {reasons}")


def check_inputs(settings: PipelineSettings) -> list[SourceShard]:
    """Return the source's files, once it is clear that all that the settings name is there.

    Raises
    ------
    ValueError
        With the key of the setting that names something missing.
    """
    check_scorers(settings.quality.scorers)
    embed.check_model(settings.embedding)
    workspace = Workspace(settings.workspace, settings.engine.scratch)
    workspace.check()
    Output.of(workspace, settings.materialize).check()
    shards = discover(settings.source)
    check_columns(settings, shards)
    return shards


def forget_fitted(workspace: Workspace, refit: Sequence[Refit]) -> None:
    """Drop the record of what is to be fitted anew."""
    patterns = {"encoder": ["encoder.json"], "quality": ["quality-*.json"]}
    for name in refit:
        for pattern in patterns[name]:
            for manifest in workspace.files(f"fitted/{pattern}"):
                remove_file(manifest)


def workers(settings: PipelineSettings) -> int:
    """Return how many tasks run at the same time."""
    return settings.engine.workers or len(choose_devices("auto")) + 1  # one prepares what the others wait for


def runner(settings: PipelineSettings) -> "TaskRunner[PrefectFuture[Any]]":
    """Return what runs the tasks: the recipe's engine."""
    threads: ThreadPoolTaskRunner[Any] = ThreadPoolTaskRunner(max_workers=workers(settings))
    return cast("TaskRunner[PrefectFuture[Any]]", threads)


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
