"""Start a run: check the inputs, open the workspace, record the run, stop running tasks if it fails."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from prefect.context import FlowRunContext
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from fineweb_mask.flows.cluster.cluster import Cluster
from fineweb_mask.flows.display.prefect_ui import published_to_ui
from fineweb_mask.flows.pipeline.choices import REFITTED, Refit, Share
from fineweb_mask.flows.pipeline.failures import damaged_discarded
from fineweb_mask.flows.pipeline.inputs import check_inputs, find_inputs, workspace_of
from fineweb_mask.flows.pipeline.records import describe, recorded, update_catalog
from fineweb_mask.flows.pipeline.run import Run
from fineweb_mask.flows.pipeline.task_runs import TaskRuns
from fineweb_mask.models.forward.device import choose_devices
from fineweb_mask.models.runtime.stopping import clear_stop_request, request_stop
from fineweb_mask.models.settings import PipelineSettings
from fineweb_mask.tasks.inference.gpu import offer_slots
from fineweb_mask.tasks.processes.workers import end_workers
from fineweb_mask.tasks.registry import refreshed_by
from fineweb_mask.tasks.source.columns import differing
from fineweb_mask.tasks.source.discovery import SourceShard
from fineweb_mask.tasks.storage.atomic import disk_errors_explained
from fineweb_mask.tasks.storage.parquet import DamagedFileError
from fineweb_mask.tasks.workspace.listing import Listing, update_index
from fineweb_mask.tasks.workspace.records.runs import LastRun
from fineweb_mask.tasks.workspace.stage_parquet import discard_finished

if TYPE_CHECKING:
    from prefect.futures import PrefectFuture

logger = logging.getLogger(__name__)

MOST_TASK_RUNS = 500
"""Prefect task runs of a stage on a cluster; with more shards, several jobs are one task run."""

MOST_THREADS = 2_000
"""Task runs that wait for a cluster at the same time; a thread is started when it is needed."""


@contextmanager
def start_run(
    settings: PipelineSettings,
    *,
    retry_delays: Sequence[float],
    refit: Sequence[Refit] | None = None,
    refresh: Iterable[str] | None = None,
    scope: frozenset[str] | None = None,
    share: Share | None = None,
    keep: bool = True,
) -> Iterator[Run]:
    """Open the workspace and yield a run, which is recorded. If the block raises, running tasks are asked to stop.

    Parameters
    ----------
    settings
        The recipe.
    retry_delays
        Seconds before each retry of a job whose error may pass.
    refit
        What is fitted again on the corpus as it is now.
    refresh
        Stages whose outputs are built again although they are current.
    scope
        Names of the stages that are run; None runs all.
    share
        The shards that are prepared; None prepares all.
    keep
        Whether the recipe is saved as that of the workspace's last run, and the catalog updated. Otherwise it is saved
        only if the workspace had no run before.
    """
    _, _, shards, models = (check_inputs if scope is None else find_inputs)(settings)
    _warn_of(settings, shards)
    with (
        workspace_of(settings).in_use() as workspace,
        disk_errors_explained(workspace.root, "the record of the run"),
        published_to_ui(settings.workspace) as ui,
        damaged_discarded(workspace),
        connected(settings) as cluster,
    ):
        discard_finished(workspace)
        with workspace.alone():
            if keep or not workspace.exists(LastRun.path(workspace)):
                LastRun(settings=settings, folder=str(Path.cwd())).save(workspace)
        clear_stop_request()
        offer_slots()
        run = Run(
            workspace,
            settings,
            shards,
            models,
            listing=Listing(workspace),
            refit=[stage.name for name in refit or [] for stage in REFITTED[name]],
            refresh=refreshed_by(refresh or []),
            scope=scope,
            share=share,
            task_runs=TaskRuns(retry_delays, workers(settings), cluster, group=-(-len(shards) // MOST_TASK_RUNS)),
            ui=ui,
        )
        with recorded(run, *_flow()) as record:
            try:
                yield run
            except BaseException as error:
                request_stop()  # Prefect waits for the tasks that still run
                if isinstance(error, DamagedFileError):
                    run.wait()  # the flow begins again
                raise
            finally:
                end_workers()
            update_index(workspace)
            describe(record, run)
        if workspace.url is None:
            update_catalog(run, keep=keep)


def _warn_of(settings: PipelineSettings, shards: Sequence[SourceShard]) -> None:
    """Log what of a recipe a person may not have meant."""
    for column, types in differing(shards).items():
        logger.warning("column %r is kept as text, because its type differs: %s", column, types)
    targets = settings.selection.targets
    if targets is not None and targets.path not in settings.ingest.decontaminate:
        logger.warning(
            "documents that repeat an example of selection.targets are selected with it: if it is of a benchmark, "
            "name %s in ingest.decontaminate, too",
            targets.path,
        )


def _flow() -> tuple[str, str | None]:
    """Return the name of the flow that is running, and the id of its run."""
    context = FlowRunContext.get()
    return (
        context.flow.name if context and context.flow else "curate",
        str(context.flow_run.id) if context and context.flow_run else None,
    )


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


def workers(settings: PipelineSettings) -> int:
    """Return the number of tasks that run at the same time."""
    return settings.engine.workers or len(choose_devices("auto")) + 1  # one prepares the others' inputs


def runner(settings: PipelineSettings) -> "TaskRunner[PrefectFuture[Any]]":
    """Return the task runner of the recipe's engine."""
    most = workers(settings) if settings.engine.kind == "local" else MOST_THREADS
    threads: ThreadPoolTaskRunner[Any] = ThreadPoolTaskRunner(max_workers=most)
    return cast("TaskRunner[PrefectFuture[Any]]", threads)
