"""What every stage shares: a job knows its key and whether its output is current; a task is cached on that key."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, ParamSpec

from prefect import Task
from prefect.cache_policies import CacheKeyFnPolicy
from prefect.client.schemas.objects import State, TaskRun
from prefect.context import TaskRunContext
from prefect.tasks import exponential_backoff
from pydantic import BaseModel, ConfigDict

from fineweb_mask.models.errors import DataError, WorkspaceError
from fineweb_mask.tasks.storage.errors import is_transient
from fineweb_mask.tasks.workspace.stage_parquet import current_parquet
from fineweb_mask.tasks.workspace.workspace import StageFile, StageKey, Workspace, disk_errors_explained

Parameters = ParamSpec("Parameters")


class BadShardError(DataError):
    """A source file cannot be read; trying again would not help."""


class StageJob(BaseModel, ABC):
    """One unit of work of a stage: what it reads, what it depends on, where its output goes."""

    model_config = ConfigDict(frozen=True)

    root: str
    name: str
    key: StageKey
    force: bool = False  # build it although the output is current

    @property
    def workspace(self) -> Workspace:
        """The workspace that the job reads and writes."""
        return Workspace(self.root)

    @abstractmethod
    def current(self) -> StageFile | None:
        """Return the output if it is whole and agrees with the job's key, else None."""


class ShardJob(StageJob):
    """A job whose output is one row-aligned Parquet file of a shard."""

    folder: ClassVar[str]

    @property
    def output(self) -> Path:
        """Where the output lies."""
        return self.workspace.shard_path(self.folder, self.name)

    def current(self) -> StageFile | None:
        """Return the shard's file if it is current, else None."""
        return current_parquet(self.workspace, self.output, self.name, self.key)


def build_once(job: StageJob, build: Callable[[], None]) -> StageFile:
    """Run `build` unless the job's output is current already, or is wanted anew; return the reference to the output.

    Raises
    ------
    LakeError
        If the output is not current after building it, or the disk is full or read-only.
    """
    if not job.force and (found := job.current()) is not None:
        return found
    started = time.perf_counter()
    with disk_errors_explained(job.workspace.root):
        build()
    built = job.current()
    if built is None:
        raise WorkspaceError(f"{job.key.stage} {job.name}: the output does not agree with what was to be built")
    return built.model_copy(update={"seconds": round(time.perf_counter() - started, 3), "cached": False})


def _retry(_task: Task[..., Any], _run: TaskRun, state: State[Any]) -> bool:
    error = state.result(raise_on_failure=False)
    return isinstance(error, BaseException) and is_transient(error)


def _cache_key(_context: TaskRunContext, parameters: dict[str, Any]) -> str:
    job: StageJob = parameters["job"]
    return job.key.cache_key


def stage_task(function: Callable[Parameters, StageFile]) -> Task[Parameters, StageFile]:
    """Make a Prefect task of a stage's plain function `function(job)`, named after it.

    Its result is a JSON record under the job's key, so it is reused across runs; transient errors are retried.
    """
    return Task(
        function,
        name=function.__name__,
        task_run_name=function.__name__ + " {job.name}",
        cache_policy=CacheKeyFnPolicy(cache_key_fn=_cache_key),
        persist_result=True,
        result_serializer="json",
        retries=3,
        retry_delay_seconds=exponential_backoff(2),
        retry_jitter_factor=0.5,
        retry_condition_fn=_retry,
    )
