"""Make a Prefect task of each stage, and submit jobs to it: one task run for each job, or for several of a stage."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from prefect import Task
from prefect.cache_policies import NO_CACHE
from prefect.states import Completed
from prefect.utilities.annotations import quote
from pydantic import BaseModel

from fineweb_mask.flows.pipeline.failures import failed
from fineweb_mask.tasks.storage.remote.errors import UnansweredError, is_transient
from fineweb_mask.tasks.workspace.job import BadShardError, Stage, StageJob, StageTask
from fineweb_mask.tasks.workspace.references import StageFile

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State, TaskRun
    from prefect.futures import PrefectFuture

UNANSWERED_RETRIES = 1
"""How often a job is tried again whose store did not answer, so that a dead one ends a run within two minutes."""

MOST_ARROWS = 500
"""Task runs that the UI draws arrows from to one that reads what they made."""

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
        self._made: dict[str, PrefectFuture[Any]] = {}  # by fingerprint and by path of an output, what made it

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
        """Start a task run of some jobs of a stage, after those that made what the jobs read: the UI draws arrows."""
        task = jobs[0].task
        if len(jobs) == 1:
            return self._submit(task, "one", jobs, job=quote(jobs[0]), name=f"{jobs[0].kind} {jobs[0].name}")
        return self._submit(
            task, "group", jobs, jobs=quote(list(jobs)), name=f"{task.stage.name} {jobs[0].name} to {jobs[-1].name}"
        )

    def _submit(
        self,
        task: StageTask,
        what: str,
        reading: Sequence[StageJob],
        **given: Any,  # noqa: ANN401
    ) -> "PrefectFuture[Any]":
        read = dict.fromkeys(name for job in reading for name in _names(job) if name in self._made)
        after = {id(future): future for future in (self._made[name] for name in islice(read, MOST_ARROWS))}
        future: PrefectFuture[Any] = self._task_of(task, what).submit(**given, wait_for=list(after.values()))
        return future

    def answers(self, jobs: Sequence[StageJob], future: "PrefectFuture[Any]") -> list[Any]:
        """Return the output or the error of each of a task run's jobs."""
        found = future.result(raise_on_failure=False)
        answers = [found] * len(jobs) if len(jobs) == 1 or isinstance(found, BaseException) else found
        for job, file in zip(jobs, answers, strict=True):
            if isinstance(file, StageFile):
                self._note(job, file, future)
        return answers

    def _note(self, job: StageJob, file: StageFile, future: "PrefectFuture[Any]") -> None:
        """Remember which task run an output is of."""
        self._made |= dict.fromkeys([file.fingerprint, *map(job.workspace.relative, job.paths())], future)

    def show_current(self, current: Sequence[tuple[StageJob, StageFile]], most: int) -> None:
        """Show jobs whose outputs are current as task runs in the state `Cached`; more than `most` are one together."""
        if len(current) > most:
            together = self._submit(
                current[0][0].task, "many", [], name=f"{current[0][0].stage.name} {len(current):,} files"
            )
            futures = [together] * len(current)
        else:
            futures = [
                self._submit(job.task, "one", [job], job=quote(job), name=f"{job.kind} {job.name}", current=quote(file))
                for job, file in current
            ]
        for future, (job, file) in zip(futures, current, strict=True):
            future.wait()
            self._note(job, file, future)

    def _make_task(self, task: StageTask, what: str) -> "Task[..., Any]":
        stage, executor = task.stage.name, self._executor

        def run_one(job: StageJob, name: str, current: StageFile | None = None) -> Any:  # noqa: ANN401, ARG001
            try:
                file = current or (task(job) if executor is None else executor.submit(job).result())
            except Exception as error:  # noqa: BLE001 - raised again unless a person can mend it
                return failed(error)
            return Completed(name="Cached", data=file) if file.cached else file

        def run_group(jobs: Sequence[StageJob], name: str) -> Any:  # noqa: ANN401, ARG001
            assert executor is not None  # noqa: S101 - groups are made for one
            futures = [executor.submit(job) for job in jobs]
            wait(futures)
            try:
                return [_file_or_bad_shard(future) for future in futures]
            except Exception as error:  # noqa: BLE001
                return failed(error)

        def show_many(name: str) -> Any:  # noqa: ANN401
            return Completed(name="Cached", message=f"{name} are current")

        functions: dict[str, Callable[..., Any]] = {"one": run_one, "group": run_group, "many": show_many}
        return Task(
            functions[what],
            name=stage,
            description=task.__doc__,
            task_run_name="{name}",
            cache_policy=NO_CACHE,  # the output's key says whether it is current
            persist_result=False,
            retries=len(self._retry_delays),
            retry_delay_seconds=self._retry_delays,
            retry_jitter_factor=JITTER,
            retry_condition_fn=_is_retried,
        )


def _names(value: object) -> Iterator[str]:
    """Yield the fingerprints and paths of the files, and of the models, that a job reads."""
    if isinstance(value, BaseModel):
        yield from (found for name in ("fingerprint", "path") if isinstance(found := getattr(value, name, None), str))
        for name in type(value).model_fields:
            yield from _names(getattr(value, name))
    elif isinstance(value, list | tuple | dict):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _names(one)


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
