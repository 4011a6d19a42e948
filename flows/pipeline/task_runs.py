"""Make a Prefect task of each stage, and submit jobs to it: one task run for each job, or for several of a stage."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from prefect import Task
from prefect.cache_policies import NO_CACHE
from prefect.states import Completed
from prefect.utilities.annotations import quote

from fineweb_mask.flows.pipeline.failures import failed
from fineweb_mask.tasks.storage.remote.errors import UnansweredError, is_transient
from fineweb_mask.tasks.workspace.job import BadShardError, Stage, StageJob, StageTask
from fineweb_mask.tasks.workspace.references import StageFile

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State, TaskRun
    from prefect.futures import PrefectFuture

UNANSWERED_RETRIES = 1
"""How often a job is tried again whose store did not answer, so that a dead one ends a run within two minutes."""

JITTER = 0.5
"""Most of a delay that is added to it at random, as a share."""


class Executor(Protocol):
    """Runs jobs somewhere else than in a thread of this process."""

    per_node: int
    """Jobs that share a machine."""

    def submit(self, job: StageJob) -> Future[StageFile]:
        """Start a job and return its output, or its error, when it is there."""

    def in_flight(self, group: int) -> int:
        """Return the number of jobs that are handed over at the same time, in groups of this size."""


class TaskRuns:
    """Submits jobs to Prefect.

    Parameters
    ----------
    retry_delays
        Seconds before each retry of an error that may pass.
    workers
        Jobs that run at the same time in threads of this process.
    executor
        Runs the jobs; None runs them in threads of this process.
    group
        Most jobs of a stage in one task run, if there is an executor: it runs them at the same time, and Prefect shows
        and retries them together.
    """

    def __init__(
        self, retry_delays: Sequence[float], workers: int, executor: Executor | None = None, group: int = 1
    ) -> None:
        self._retry_delays = list(retry_delays)
        self._workers = workers
        self._executor = executor
        self._group = group
        self._task_of = cache(self._make_task)

    @property
    def per_machine(self) -> int:
        """Jobs that run at the same time on one machine."""
        return self._workers if self._executor is None else self._executor.per_node

    @property
    def in_flight(self) -> int:
        """Jobs that are submitted at the same time."""
        return self._workers if self._executor is None else self._executor.in_flight(self._group)

    def jobs_in_one(self, stage: Stage) -> int:
        """Return the most jobs of a stage in one task run."""
        return self._group if stage.per_shard and self._executor is not None else 1

    def submit(self, jobs: Sequence[StageJob]) -> "PrefectFuture[Any]":
        """Start a task run of some jobs of a stage."""
        task = jobs[0].task
        if len(jobs) == 1:
            return self._task_of(task, "one").submit(job=jobs[0])
        return self._task_of(task, "group").submit(jobs=quote(list(jobs)), first=jobs[0].name, last=jobs[-1].name)

    @staticmethod
    def answers(jobs: int, future: "PrefectFuture[Any]") -> list[Any]:
        """Return the output or the error of each of a task run's jobs."""
        found = future.result(raise_on_failure=False)
        return [found] * jobs if jobs == 1 or isinstance(found, BaseException) else found

    def show_current(self, current: Sequence[tuple[StageJob, StageFile]], most: int) -> None:
        """Show jobs whose outputs are current as task runs in the state `Cached`; more than `most` are one together."""
        if len(current) > most:
            futures = [self._task_of(current[0][0].task, "many").submit(number=len(current))]
        else:
            futures = [self._task_of(job.task, "one").submit(job=job, current=file) for job, file in current]
        for future in futures:
            future.wait()

    def _make_task(self, task: StageTask[Any], what: str) -> "Task[..., Any]":
        stage, executor = task.stage.name, self._executor

        def run_one(job: StageJob, current: StageFile | None = None) -> Any:  # noqa: ANN401 - a reference, or a state
            try:
                file = current or (task(job) if executor is None else executor.submit(job).result())
            except Exception as error:  # noqa: BLE001 - raised again unless a person can mend it
                return failed(error)
            return Completed(name="Cached", data=file) if file.cached else file

        def run_group(jobs: Sequence[StageJob], first: str, last: str) -> Any:  # noqa: ANN401, ARG001
            assert executor is not None  # noqa: S101 - groups are made for one
            futures = [executor.submit(job) for job in jobs]
            wait(futures)
            try:
                return [_file_or_bad_shard(future) for future in futures]
            except Exception as error:  # noqa: BLE001
                return failed(error)

        def show_many(number: int) -> Any:  # noqa: ANN401
            return Completed(name="Cached", message=f"{number:,} files are current")

        functions: dict[str, tuple[Callable[..., Any], str]] = {
            "one": (run_one, "{job.kind} {job.name}"),
            "group": (run_group, f"{stage} {{first}} to {{last}}"),
            "many": (show_many, f"{stage} {{number}} files"),
        }
        function, run_name = functions[what]
        return Task(
            function,
            name=stage,
            description=task.__doc__,
            task_run_name=run_name,
            cache_policy=NO_CACHE,  # the output's key says whether it is current
            persist_result=False,
            retries=len(self._retry_delays),
            retry_delay_seconds=self._retry_delays,
            retry_jitter_factor=JITTER,
            retry_condition_fn=_is_retried,
        )


def _file_or_bad_shard(future: Future[StageFile]) -> StageFile | BadShardError:
    try:
        return future.result()
    except BadShardError as error:
        return error


def _is_retried(_task: "Task[..., Any]", run: "TaskRun", state: "State[Any]") -> bool:
    error = state.result(raise_on_failure=False)
    if isinstance(error, UnansweredError):  # its operations were retried already, for `retries.PATIENCE_SECONDS`
        return run.run_count <= UNANSWERED_RETRIES
    return isinstance(error, BaseException) and is_transient(error)
