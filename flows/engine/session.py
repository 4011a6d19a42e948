"""Open a workspace for one run: check the inputs, record the run, stop running tasks if it fails."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import wraps
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar, cast

from prefect.context import FlowRunContext
from prefect.logging import get_run_logger
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from fineweb_mask.flows.display.prefect_ui import UiListener, published_to_ui
from fineweb_mask.flows.engine.choices import PretrainedModels, Refit, Share
from fineweb_mask.flows.engine.cluster import Cluster, check_engine
from fineweb_mask.flows.engine.plan import Plan
from fineweb_mask.flows.engine.registry import SELECTION_INPUTS, refreshed_by
from fineweb_mask.flows.engine.scheduler import Scheduler
from fineweb_mask.models.dedup.minhash import load_rensa
from fineweb_mask.models.errors import SettingsError, WorkspaceError
from fineweb_mask.models.forward.device import choose_devices
from fineweb_mask.models.runtime.stopping import clear_stop_request, request_stop
from fineweb_mask.models.settings import PipelineSettings
from fineweb_mask.tasks import embed
from fineweb_mask.tasks.dataset.output import Output
from fineweb_mask.tasks.inference.gpu import offer_slots
from fineweb_mask.tasks.inference.scorers import check_scorers
from fineweb_mask.tasks.inference.scoring_pool import end_scoring_processes
from fineweb_mask.tasks.source.column_checks import check_columns
from fineweb_mask.tasks.source.column_types import differing, settle
from fineweb_mask.tasks.source.discovery import SourceShard, check_apart, discover, find_files
from fineweb_mask.tasks.source.texts import check_can_be_read_again
from fineweb_mask.tasks.storage.atomic import remove_file
from fineweb_mask.tasks.storage.parquet import DamagedFileError
from fineweb_mask.tasks.workspace.build_info import code_commit
from fineweb_mask.tasks.workspace.checkpoints import discard_finished
from fineweb_mask.tasks.workspace.counts import mean_terms
from fineweb_mask.tasks.workspace.listing import Listing, update_index
from fineweb_mask.tasks.workspace.runs import LastRun, QuarantinedShard, RunRecord
from fineweb_mask.tasks.workspace.workspace import Workspace, disk_errors_explained

if TYPE_CHECKING:
    from prefect.futures import PrefectFuture

P = ParamSpec("P")
R = TypeVar("R")

logger = logging.getLogger(__name__)

MOST_TASK_RUNS = 500
"""Prefect task runs of a stage on a cluster; with more shards, several jobs are one task run."""

MOST_REBUILDS = 100
"""Damaged files that a run builds again, one after the other; a disk with more of them is to be replaced."""

MOST_THREADS = 2_000
"""Task runs that wait for a cluster at the same time; a thread is started when it is needed."""


class Session(NamedTuple):
    """One run in a workspace, made by `open_session`."""

    scheduler: Scheduler
    plan: Plan
    ui: UiListener


@contextmanager
def open_session(
    settings: PipelineSettings,
    *,
    refit: Sequence[Refit] | None = None,
    refresh: Iterable[str] | None = None,
    scope: frozenset[str] | None = None,
    share: Share | None = None,
    keep: bool = True,
) -> Iterator[Session]:
    """Open the workspace and yield a run's scheduler and plan. If the block raises, running tasks are asked to stop.

    Parameters
    ----------
    settings
        The recipe.
    refit
        What is fitted again on the corpus as it is now.
    refresh
        Stages whose outputs are built again although they are current.
    scope
        Names of the stages that are run; None runs all.
    share
        The shards that are worked on; None works on all.
    keep
        Whether the recipe is saved as that of the workspace's last run, and the catalog updated. Otherwise it is saved
        only if the workspace had no run before.
    """
    shards = check_inputs(settings)
    for column, types in differing(shards).items():
        logger.warning("column %r is kept as text, because its type differs: %s", column, types)
    with (
        workspace_of(settings).in_use() as workspace,
        published_to_ui() as ui,
        damaged_discarded(workspace),
        ExitStack() as opened,
    ):
        listing, again = Listing.of(workspace), refreshed_by(refresh or [])
        discard_finished(workspace)
        with workspace.alone():
            if "blocks" in (refit or []):
                remove_file(workspace.groups)
            if keep or not workspace.exists(LastRun.path(workspace)):
                LastRun(settings=settings, folder=str(Path.cwd())).save(workspace)
        clear_stop_request()
        offer_slots()
        cluster = opened.enter_context(connected(settings))
        scheduler = Scheduler(
            workspace,
            quarantine=settings.ingest.on_bad_shard == "quarantine",
            at_once=workers(settings),
            refresh=again,
            scope=scope,
            listing=listing,
            cluster=cluster,
            group=-(-len(shards) // MOST_TASK_RUNS),
        )
        with recorded(scheduler, settings) as record:
            try:
                models = PretrainedModels.of(settings)
                plan = Plan(
                    scheduler,
                    workspace,
                    settings,
                    shards,
                    models,
                    listing=listing,
                    refit=refit or [],
                    refresh=again,
                    share=share,
                )
                yield Session(scheduler, plan, ui)
            except BaseException as error:
                request_stop()  # Prefect waits for the tasks that still run
                if isinstance(error, DamagedFileError):
                    scheduler.wait()  # the flow begins again
                raise
            finally:
                end_scoring_processes()
            if cluster is not None:
                workspace.refresh_listing()  # other machines wrote the files
            update_index(workspace)
            describe(record, plan)
        if workspace.url is None:
            _update_catalog(workspace, scheduler, plan, keep=keep)


class DiscardedError(WorkspaceError):
    """A file of the workspace was damaged and is deleted: a run builds it again."""


@contextmanager
def damaged_discarded(workspace: Workspace) -> Iterator[None]:
    """Delete a file of the workspace that a job found damaged.

    Raises
    ------
    DiscardedError
        In place of the error that names the file.
    """
    try:
        yield
    except DamagedFileError as error:
        path = Path(error.path)
        if not path.is_relative_to(workspace.root):
            raise
        remove_file(path)
        raise DiscardedError(f"{error}; it is deleted: run again to build it again") from error


def rebuilds_damaged(run: Callable[P, R]) -> Callable[P, R]:
    """Let a flow's function begin again after a file of its workspace was damaged: what is whole is not built again."""

    @wraps(run)
    def run_again(*arguments: P.args, **options: P.kwargs) -> R:
        for _ in range(MOST_REBUILDS):
            try:
                return run(*arguments, **options)
            except DiscardedError as error:
                get_run_logger().warning("%s; it is built again", error.__cause__)
        return run(*arguments, **options)

    return run_again


@contextmanager
def connected(settings: PipelineSettings) -> Iterator[Cluster | None]:
    """Yield the cluster of the recipe's engine; None if it has none.

    Raises
    ------
    ClusterError
        If the cluster cannot be reached.
    """
    if settings.engine.kind == "local":
        yield None
        return
    cluster = Cluster(settings.engine)
    try:
        yield cluster
    finally:
        cluster.close()


def _update_catalog(workspace: Workspace, scheduler: Scheduler, plan: Plan, *, keep: bool) -> None:
    from fineweb_mask.tasks.catalog.views import catalog_path, write_catalog  # at the top, DuckDB reports leaks

    if keep:
        if plan.is_prepared and not plan.masks:  # a stage was run by itself: the masks may be stale now
            plan.select()
        with workspace.alone(), disk_errors_explained(workspace.root, "the catalog"):
            write_catalog(workspace, plan.catalog_files(scheduler.quarantined))
    elif any(stage.cached < stage.files for stage in scheduler.in_order if stage.stage in SELECTION_INPUTS):
        catalog_path(workspace).unlink(missing_ok=True)  # the masks may be stale now; `sql` rebuilds it on demand


def workspace_of(settings: PipelineSettings) -> Workspace:
    """Return the workspace of a recipe, with the room that it has on this machine."""
    return Workspace(settings.workspace, settings.engine.scratch, settings.engine.scratch_bytes)


def check_inputs(settings: PipelineSettings) -> list[SourceShard]:
    """Check that everything the settings name exists, and return the source's files.

    Raises
    ------
    ValueError
        With the key of the setting that names something that does not exist.
    """
    clear_stop_request()  # of a run of this process that failed: what follows reads files
    check_scorers(settings.quality.scorers)
    if settings.ingest.near_dedup == "minhash":
        load_rensa()
    embed.check_model(settings.embedding)
    workspace = workspace_of(settings)
    workspace.check_reachable()
    workspace.check_is_ours()
    Output.of(workspace, settings.materialize).check()
    for path in settings.ingest.against:
        find_files(path, "ingest.against")
    shards = settle(discover(settings.source), settings.source)
    check_apart(settings.source.path, shards, {"workspace": workspace.address, **_output(settings)})
    check_columns(settings, shards)
    if settings.engine.kind == "ray":
        check_engine(settings.engine)
    if not settings.ingest.copy_text:
        check_can_be_read_again(shards)
    return shards


def _output(settings: PipelineSettings) -> dict[str, str]:
    output = settings.materialize.output
    return {} if output is None else {"materialize.output": output}


def check_vectors_are_kept(settings: PipelineSettings, why: str) -> None:
    """Check that a recipe stores the vectors.

    Raises
    ------
    SettingsError
        If it does not; the message says why they are needed.
    """
    if not settings.embedding.keep:
        raise SettingsError(
            f"embedding.keep: {why}, and this recipe keeps none: add --set embedding.keep=true, which stores them all"
        )


def workers(settings: PipelineSettings) -> int:
    """Return the number of tasks that run at the same time."""
    return settings.engine.workers or len(choose_devices("auto")) + 1  # one prepares the others' inputs


def runner(settings: PipelineSettings) -> "TaskRunner[PrefectFuture[Any]]":
    """Return the task runner of the recipe's engine."""
    most = workers(settings) if settings.engine.kind == "local" else MOST_THREADS
    threads: ThreadPoolTaskRunner[Any] = ThreadPoolTaskRunner(max_workers=most)
    return cast("TaskRunner[PrefectFuture[Any]]", threads)


@contextmanager
def recorded(scheduler: Scheduler, settings: PipelineSettings) -> Iterator[RunRecord]:
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
