"""Make a Prefect task of each stage, and submit jobs to it: one task run for each job, or for several of a stage."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import wait
from contextlib import nullcontext
from functools import cache, partial, wraps
from itertools import islice
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from prefect import Task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.futures import PrefectFuture
from prefect.states import Completed, Failed
from prefect.utilities.annotations import quote
from pydantic import BaseModel

from fineweb_mask.flows.processes.signals import raise_if_interrupted
from fineweb_mask.models.errors import message_of
from fineweb_mask.models.runtime.progress import reporting_to
from fineweb_mask.tasks.storage.remote.errors import UnansweredError, is_transient
from fineweb_mask.tasks.workspace.job import BadShardError, StageJob, StageTask
from fineweb_mask.tasks.workspace.references import StageFile

if TYPE_CHECKING:
    from fineweb_mask.flows.cluster.cluster import RayCluster
    from fineweb_mask.flows.display.prefect_ui import PrefectUi

P = ParamSpec("P")
R = TypeVar("R")

RETRY_DELAYS = (2.0, 8.0)
"""Seconds before each retry of a task run whose error may pass, such as a store's that does not answer."""

UNANSWERED_RETRIES = 1
"""How often a job is tried again whose store did not answer, so that a dead one ends a run within two minutes."""

MOST_ARROWS = 500
"""Task runs that the UI draws arrows from to one that reads what they made."""

MOST_SHOWN = 500
"""Current jobs of a stage that are a task run each; more of them are one task run together."""

JITTER = 0.5
"""Most of a delay that is added to it at random, as a share."""


def in_one_line(run: Callable[P, R]) -> Callable[P, R]:
    """Let the function of a flow or a task return the state `Failed` for an error that a person can mend.

    Its message is one line of the log, and what the Prefect UI shows, where Prefect would log the traceback of what is
    raised. Who asks for the result gets the error all the same. A bug is raised.
    """

    @wraps(run)
    def run_or_fail(*arguments: P.args, **options: P.kwargs) -> R:
        try:
            return run(*arguments, **options)
        except Exception as error:
            if (message := message_of(error)) is None:
                raise
            return cast("R", Failed(message=message, data=error))

    return run_or_fail


class TaskRuns:
    """Submits jobs to Prefect.

    Parameters
    ----------
    workers
        Jobs that run at the same time in threads of this process.
    cluster
        Runs the jobs; None runs them in threads of this process.
    group
        Most jobs of a stage in one task run, if there is a cluster: it runs them at the same time, and Prefect shows
        and retries them together.
    ui
        Shows how far the jobs are; None shows nothing.
    """

    def __init__(
        self, workers: int, cluster: "RayCluster | None" = None, group: int = 1, ui: "PrefectUi | None" = None
    ) -> None:
        self._workers = workers
        self._cluster = cluster
        self._group = group
        self._ui = ui
        self._task_of = cache(self._make_task)
        self._made: dict[str, PrefectFuture[Any]] = {}  # by fingerprint and by path of an output, what made it

    def built(
        self, jobs: Sequence[tuple[int, StageJob]], at_once: int | None = None
    ) -> Iterator[tuple[int, StageFile | BaseException]]:
        """Build the outputs of jobs of a stage; yield each job's place, and its output or error, as it ends.

        Parameters
        ----------
        jobs
            Jobs of one stage, each with its place.
        at_once
            Most jobs at the same time, if not as many as usual.
        """
        waiting, in_flight = deque(jobs), 0
        running: dict[PrefectFuture[Any], list[tuple[int, StageJob]]] = {}
        ended = SimpleQueue[PrefectFuture[Any]]()
        while waiting or running:
            raise_if_interrupted()
            most = at_once or (self._workers if self._cluster is None else self._cluster.in_flight(self._group))
            while waiting and in_flight < most:
                stage = waiting[0][1].stage
                together = self._group if stage.per_shard and self._cluster is not None else 1
                batch = [waiting.popleft() for _ in range(min(together, most - in_flight, len(waiting)))]
                in_flight += len(batch)
                shown = self._ui and reporting_to(partial(self._ui.on_job_progress, stage.shown_as, batch[0][1].name))
                with shown or nullcontext():
                    future = self.submit([job for _, job in batch])  # a task copies this context
                running[future] = batch
                future.add_done_callback(ended.put)
            future = ended.get()
            batch = running.pop(future)
            in_flight -= len(batch)
            found = future.result(raise_on_failure=False)
            answers = [found] * len(batch) if len(batch) == 1 or isinstance(found, BaseException) else found
            for (place, job), answer in zip(batch, answers, strict=True):
                if isinstance(answer, StageFile):
                    self._note(job, answer, future)
                yield place, answer

    def submit(self, jobs: Sequence[StageJob], current: Sequence[StageFile] = ()) -> PrefectFuture[Any]:
        """Start a task run of some jobs of a stage, or show that they are done: their outputs are current.

        It runs after those that made what the jobs read: the UI draws arrows.
        """
        first, stage = jobs[0], jobs[0].stage.name
        reading: Iterable[StageJob] = jobs
        if len(jobs) == 1:
            name = f"{first.kind} {first.name}"
        elif current:
            name, reading = f"{stage} {len(jobs):,} files", ()
        else:
            name = f"{stage} {first.name} to {jobs[-1].name}"
        read = dict.fromkeys(name for job in reading for name in _names(job) if name in self._made)
        after = {id(future): future for future in (self._made[name] for name in islice(read, MOST_ARROWS))}
        task = self._task_of(first.task)
        return task.submit(quote(list(jobs)), quote(list(current)), name=name, wait_for=list(after.values()))

    def _note(self, job: StageJob, file: StageFile, future: PrefectFuture[Any]) -> None:
        """Remember which task run an output is of."""
        self._made |= dict.fromkeys([file.fingerprint, *map(job.workspace.relative, job.paths())], future)

    def show_current(self, current: Sequence[tuple[StageJob, StageFile]]) -> None:
        """Show jobs whose outputs are current as task runs in the state `Cached`; very many are one together."""
        batches = [current] if len(current) > MOST_SHOWN else [[one] for one in current]
        futures: list[PrefectFuture[Any]] = []
        for batch in batches:
            futures.append(self.submit(*zip(*batch, strict=True)))
            if len(futures) > self._workers:  # else each would have a thread
                futures[-1 - self._workers].wait()
        for future, batch in zip(futures, batches, strict=True):
            future.wait()
            for job, file in batch:
                self._note(job, file, future)

    def _make_task(self, task: StageTask) -> Task[..., Any]:
        def run(jobs: Sequence[StageJob], current: Sequence[StageFile], name: str) -> Any:  # noqa: ANN401
            if len(current) > 1:
                return Completed(name="Cached", message=f"{name} are current")
            files = current or self._build(task, jobs)
            if len(files) > 1:
                return files
            return Completed(name="Cached", data=files[0]) if files[0].cached else files[0]

        return Task(
            in_one_line(run),
            name=task.stage.name,
            description=task.__doc__,
            task_run_name="{name}",
            cache_policy=NO_CACHE,  # the output's key says whether it is current
            persist_result=False,
            retries=len(RETRY_DELAYS),
            retry_delay_seconds=list(RETRY_DELAYS),
            retry_jitter_factor=JITTER,
            retry_condition_fn=_is_retried,
        )

    def _build(self, task: StageTask, jobs: Sequence[StageJob]) -> list[Any]:
        """Return the output of each job; of several jobs, the error of one whose shard is bad."""
        if self._cluster is None:
            return [task(job) for job in jobs]
        futures = [self._cluster.submit(job) for job in jobs]
        wait(futures)
        errors = [future.exception() if len(jobs) > 1 else None for future in futures]
        return [
            error if isinstance(error, BadShardError) else future.result()
            for error, future in zip(errors, futures, strict=True)
        ]


def _names(value: object) -> Iterator[str]:
    """Yield the fingerprints and paths of the files, and of the models, that a job reads."""
    if isinstance(value, BaseModel):
        yield from (found for name in ("fingerprint", "path") if isinstance(found := getattr(value, name, None), str))
        for name in type(value).model_fields:
            yield from _names(getattr(value, name))
    elif isinstance(value, list | tuple | dict):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _names(one)


def _is_retried(_task: Task[..., Any], run: TaskRun, state: State[Any]) -> bool:
    error = state.result(raise_on_failure=False)
    if isinstance(error, UnansweredError):  # its operations were retried already, for `errors.PATIENCE_SECONDS`
        return run.run_count <= UNANSWERED_RETRIES
    return isinstance(error, BaseException) and is_transient(error)
