"""Start a flow: name its run, check the inputs, open the workspace, record the run, stop running tasks if it fails."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from prefect import Flow, flow
from prefect.context import FlowRunContext
from prefect.task_runners import ThreadPoolTaskRunner

from fineweb_mask.flows.cluster.cluster import Cluster
from fineweb_mask.flows.display.prefect_ui import published_to_ui
from fineweb_mask.flows.pipeline.failures import damaged_discarded, fails_in_one_line
from fineweb_mask.flows.pipeline.fit import REFITTED, Refit
from fineweb_mask.flows.pipeline.inputs import check_inputs, find_inputs, remember
from fineweb_mask.flows.pipeline.records import recorded
from fineweb_mask.flows.pipeline.run import Run, Share
from fineweb_mask.flows.pipeline.task_runs import TaskRuns
from fineweb_mask.models.forward.device import choose_devices
from fineweb_mask.models.runtime.stopping import clear_stop_request, request_stop
from fineweb_mask.models.settings import PipelineSettings
from fineweb_mask.tasks.fit.job import fitted_on_other_files
from fineweb_mask.tasks.inference.gpu import offer_slots
from fineweb_mask.tasks.processes.workers import end_workers
from fineweb_mask.tasks.registry import refreshed_by
from fineweb_mask.tasks.source.discovery import SourceShard
from fineweb_mask.tasks.source.inventory import Inventory, take_inventory
from fineweb_mask.tasks.storage.atomic import disk_errors_explained
from fineweb_mask.tasks.storage.parquet import DamagedFileError
from fineweb_mask.tasks.workspace.listing import Listing
from fineweb_mask.tasks.workspace.records.runs import LastRun
from fineweb_mask.tasks.workspace.workspace import Workspace

P = ParamSpec("P")
R = TypeVar("R")

logger = logging.getLogger(__name__)

MOST_TASK_RUNS = 500
"""Prefect task runs of a stage on a cluster; with more shards, several jobs are one task run."""

MOST_THREADS = 2_000
"""Task runs that wait for a cluster at the same time; a thread is started when it is needed."""


def as_flow(name: str, run_name: str | None = None) -> Callable[[Callable[P, R]], Flow[P, R]]:
    """Return the decorator that makes a function a Prefect flow, which fails in one line if a person can mend it.

    A run's name says what ran, in which workspace, and when, if `run_name` says nothing else.
    """

    def decorate(run: Callable[P, R]) -> Flow[P, R]:
        return flow(
            name=name,
            flow_run_name=run_name or named(name),
            task_runner=_Threads(max_workers=MOST_THREADS),  # type: ignore[arg-type]
            cache_result_in_memory=False,
        )(fails_in_one_line(run))

    return decorate


class _Threads(ThreadPoolTaskRunner[Any]):
    """Runs a flow's tasks in threads; when the last has ended, nothing is asked to stop any more."""

    def __exit__(self, *error: Any) -> None:  # noqa: ANN401
        super().__exit__(*error)
        clear_stop_request()


def named(flow: str) -> Callable[[], str]:
    """Return the function by which Prefect names a run of a flow, such as `curate workspaces/sample 23 Nov 18:50`."""

    def name() -> str:
        context = FlowRunContext.get()
        parameters: Mapping[str, Any] = context.parameters or {} if context else {}
        settings, overrides = parameters.get("settings"), parameters.get("overrides") or {}
        workspace = overrides.get("workspace") or getattr(settings, "workspace", "")
        return f"{flow} {workspace} {datetime.now().astimezone():%d %b %H:%M}"

    return name


@contextmanager
def start_run(
    settings: PipelineSettings,
    *,
    refit: Sequence[Refit] | None = None,
    refresh: Iterable[str] | None = None,
    scope: frozenset[str] | None = None,
    until: str | None = None,
    share: Share | None = None,
    keep: bool = True,
) -> Iterator[Run]:
    """Open the workspace and yield a run, which is recorded. If the block raises, running tasks are asked to stop.

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
    until
        The stage that the run stops after; None: none.
    share
        The shards that are prepared; None prepares all.
    keep
        Whether the recipe is saved as that of the workspace's last run, and the catalog updated. Otherwise it is saved
        only if the workspace had no run before.
    """
    workspace, shards, models, source = (check_inputs if scope is None else find_inputs)(settings)
    inventory = take_inventory(source, settings.source)
    _warn_of(workspace, settings, shards, inventory)
    with (
        workspace.in_use(),
        disk_errors_explained(workspace.root, "the record of the run"),
        published_to_ui(settings.workspace) as ui,
        damaged_discarded(workspace),
        closing(Cluster(settings.engine)) if settings.engine.kind == "ray" else nullcontext() as cluster,
    ):
        with workspace.alone():
            if keep or not workspace.exists(LastRun.path(workspace)):
                LastRun(settings=settings, folder=str(Path.cwd()), source=inventory.model_dump()).save(workspace)
        remember(workspace, shards, settings)
        clear_stop_request()
        offer_slots()
        workers = settings.engine.workers or len(choose_devices("auto")) + 1  # one prepares the others' inputs
        task_runs = TaskRuns(workers, cluster, group=-(-len(shards) // MOST_TASK_RUNS), ui=ui)
        context = FlowRunContext.get()
        name = context.flow.name if context and context.flow else "curate"
        recorded_as = name if until is None else f"{name} until {until}"
        flow_run = str(context.flow_run.id) if context and context.flow_run else None
        run = Run(
            workspace,
            settings,
            shards,
            models,
            listing=Listing(workspace),
            refit=[stage.name for name in refit or [] for stage in REFITTED[name]],
            refresh=refreshed_by(list(refresh or [])),
            scope=scope,
            until=until,
            share=share,
            task_runs=task_runs,
            ui=ui,
            source=inventory,
        )
        with recorded(run, recorded_as, flow_run, keep=keep):
            try:
                yield run
            except BaseException as error:
                request_stop()  # Prefect waits for the tasks that still run
                if isinstance(error, DamagedFileError):
                    task_runs.wait()  # the flow begins again
                raise
            finally:
                end_workers()


def _warn_of(
    workspace: Workspace, settings: PipelineSettings, shards: Sequence[SourceShard], source: Inventory
) -> None:
    """Log what of a recipe and its source a person may not have meant."""
    if another := fitted_on_other_files(workspace, {shard.name for shard in shards}):
        logger.warning("%s", another)
    for about, line in source.worries:
        logger.warning("%-10s %s", about, line)
    targets = settings.selection.targets
    if targets is not None and targets.path not in settings.ingest.decontaminate:
        logger.warning(
            "documents that repeat an example of selection.targets are selected with it: if it is of a benchmark, "
            "name %s in ingest.decontaminate, too",
            targets.path,
        )
