"""Start a flow: name its run, check the inputs, open the workspace, record the run, stop running tasks if it fails."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from prefect import Flow, flow
from prefect.context import FlowRunContext
from prefect.task_runners import ThreadPoolTaskRunner

from fineweb_mask.flows.cluster.cluster import RayCluster
from fineweb_mask.flows.display.prefect_ui import published_to_ui
from fineweb_mask.flows.pipeline.fit import REFITTED, Refit
from fineweb_mask.flows.pipeline.inputs import check_inputs, doubts
from fineweb_mask.flows.pipeline.records import recorded
from fineweb_mask.flows.pipeline.run import Run, Share
from fineweb_mask.flows.pipeline.task_runs import TaskRuns, in_one_line
from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.models.runtime.stopping import clear_stop_request, request_stop
from fineweb_mask.models.settings import PipelineSettings
from fineweb_mask.tasks.processes.workers import end_workers
from fineweb_mask.tasks.source.columns import remember_columns
from fineweb_mask.tasks.source.inventory import take_inventory
from fineweb_mask.tasks.storage.atomic import disk_errors_explained, remove_file
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


class DiscardedError(WorkspaceError):
    """A file of the workspace was damaged and is deleted: a run builds it again."""


def as_flow(name: str, run_name: str | None = None) -> Callable[[Callable[P, R]], Flow[P, R]]:
    """Return the decorator that makes a function a Prefect flow, which fails in one line if a person can mend it.

    A run's name says what ran, in which workspace, and when, if `run_name` says nothing else.
    """

    def run_named() -> str:
        """Return, for example, `curate workspaces/sample 23 Nov 18:50`."""
        context = FlowRunContext.get()
        parameters: Mapping[str, Any] = context.parameters or {} if context else {}
        settings, overrides = parameters.get("settings"), parameters.get("overrides") or {}
        workspace = overrides.get("workspace") or getattr(settings, "workspace", "")
        return f"{name} {workspace} {datetime.now().astimezone():%d %b %H:%M}"

    made = flow(
        name=name,
        flow_run_name=run_name or run_named,
        task_runner=_Threads(max_workers=MOST_THREADS),  # type: ignore[arg-type]
        cache_result_in_memory=False,
    )
    return lambda run: made(in_one_line(run))


class _Threads(ThreadPoolTaskRunner[Any]):
    """Runs a flow's tasks in threads; when the last has ended, nothing is asked to stop any more."""

    def __exit__(self, *error: Any) -> None:  # noqa: ANN401
        super().__exit__(*error)
        clear_stop_request()


@contextmanager
def start_run(
    settings: PipelineSettings,
    *,
    refit: Sequence[Refit] | None = None,
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
    until
        The stage that the run stops after; None: none.
    share
        The shards that the run works on; None: all.
    keep
        Whether the recipe is saved as that of the workspace's last run, and the catalog updated. Otherwise it is saved
        only if the workspace had no run before.

    Raises
    ------
    DiscardedError
        If a file of the workspace is damaged.
    """
    inputs = check_inputs(settings)
    workspace, shards = inputs.workspace, inputs.shards
    inventory = take_inventory(inputs.source, settings.source)
    for line in doubts(inputs, settings, inventory):
        logger.warning("%s", line)
    with (
        workspace.in_use(),
        disk_errors_explained(workspace.root, "the record of the run"),
        published_to_ui(settings.workspace) as ui,
        _damaged_discarded(workspace),
        closing(RayCluster()) if settings.engine.kind == "ray" else nullcontext() as cluster,
    ):
        with workspace.alone():
            if keep or not workspace.is_started:
                LastRun(settings=settings, folder=str(Path.cwd()), source=inventory.model_dump()).save(workspace)
        remember_columns(workspace, settings, shards)
        clear_stop_request()
        context = FlowRunContext.get()
        name = context.flow.name if context and context.flow else "curate"
        run = Run(
            workspace,
            settings,
            shards,
            inputs.models,
            listing=Listing(workspace),
            refit=[stage.name for name in refit or [] for stage in REFITTED[name]],
            until=until,
            share=share,
            task_runs=TaskRuns(settings.engine.workers, cluster, group=-(-len(shards) // MOST_TASK_RUNS), ui=ui),
            ui=ui,
            source=inventory,
        )
        flow_run = str(context.flow_run.id) if context and context.flow_run else None
        with recorded(run, name if until is None else f"{name} until {until}", flow_run, keep=keep):
            try:
                yield run
            except BaseException:
                request_stop()  # Prefect waits for the tasks that still run
                if cluster is not None:
                    cluster.cancel()
                raise
            finally:
                end_workers()


@contextmanager
def _damaged_discarded(workspace: Workspace) -> Iterator[None]:
    """Delete a file of the workspace that a job found damaged."""
    try:
        yield
    except DamagedFileError as error:
        path = Path(error.path)
        if not path.is_relative_to(workspace.root):
            raise
        remove_file(path)
        raise DiscardedError(f"{error}; it is deleted: run again to build it again") from error
