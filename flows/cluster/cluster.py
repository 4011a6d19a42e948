"""Run jobs on a Ray cluster: most as Ray tasks, those that use a GPU in one long-lived process for each GPU.

Prefect stays in this process: it knows the order of the jobs and retries them, and Ray knows the machines. Ray repeats
a job whose process or node ended; an error that is left is transient for Prefect, which tries the job again.
"""

import logging
import os
import secrets
import signal
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from functools import lru_cache, partial
from importlib.util import find_spec
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from fineweb_mask.flows.cluster.ray_worker import GpuWorker, as_text, work_on
from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.runtime.stopping import StoppedError, wait_for_stop
from fineweb_mask.models.settings.engine import EngineSettings, JobResources
from fineweb_mask.tasks.processes.workers import WorkerProcessError
from fineweb_mask.tasks.registry import stage_names
from fineweb_mask.tasks.storage.remote.errors import is_transient
from fineweb_mask.tasks.workspace.job import StageJob
from fineweb_mask.tasks.workspace.references import StageFile

if TYPE_CHECKING:
    from ray import ObjectRef

logger = logging.getLogger(__name__)

RETRIES = 3
"""How often a job is repeated whose process or node ended, before its error is Prefect's."""
RESOURCES_SECONDS = 30.0
"""Time between two looks at how large the cluster is."""
MOST_IN_FLIGHT = 20_000
STOPPED = "stopped on request"
STOP_SECONDS = 0.2
CONNECT_SECONDS = 60.0
"""Time that a cluster has to take this process as its driver."""

LOCAL = "local"
"""Ray's name for a cluster of this machine alone, which is started."""
ANSWER_SECONDS = 10.0
"""Time that the cluster's head has to take a connection; Ray itself would try for minutes, and then end the process."""

_TOKEN = secrets.token_hex(32)
"""What the processes of a Ray of this machine alone ask of each other; Ray's own would be a file in the home folder."""


class ClusterError(SettingsError):
    """Ray is not installed, or the cluster cannot be reached."""


class LostJobError(WorkerProcessError):
    """A process or a node of the cluster ended again and again with a job; a retry may help."""


class _Asked(NamedTuple):
    """A job, as it is handed to the cluster."""

    what: str  # it is, for messages
    inputs: tuple[str, str]  # of `work_on`
    done: Future[StageFile]


class Cluster:
    """A connection to a Ray cluster, or a Ray of this machine alone.

    Ray starts a process with a GPU as soon as a node has one free, also one that joins later, and again if it ends.

    Parameters
    ----------
    settings
        The section `engine` of the recipe.
    gpus
        Processes that hold a GPU each; None: as many as the cluster has, also of nodes that join later.

    Raises
    ------
    ClusterError
        If Ray is not installed, or the cluster cannot be reached.
    """

    def __init__(self, settings: EngineSettings, gpus: int | None = None) -> None:
        self._ray = _connect(settings)
        self._settings = settings
        self._gpus = gpus
        self._function = self._ray.remote(max_retries=RETRIES)(work_on)  # exported to the cluster once
        again = {"max_restarts": RETRIES, "max_task_retries": RETRIES}
        self.worker_type = self._ray.remote(num_gpus=1, num_cpus=1, **again)(GpuWorker)
        self.workers: list[Any] = []  # processes that hold a GPU, or wait for one
        self._idle: list[Any] = []
        self._waiting = deque[_Asked]()  # for a process with a GPU
        self._resources = lru_cache(1)(lambda _period: self._ray.cluster_resources())
        # What runs, and in which process with a GPU; without a job, that process is starting.
        self._running: dict[ObjectRef[Any], tuple[_Asked | None, Any]] = {}
        self._lock = threading.RLock()  # a job may end while it is started
        self._closed = threading.Event()
        self._watcher = threading.Thread(target=self._stop_when_asked, daemon=True)
        self._watcher.start()

    def _number_of(self, kind: str) -> float:
        """Return the number of `CPU` or `GPU` of all nodes, asked again now and then, because nodes join and leave."""
        resources: dict[str, float] = self._resources(monotonic() // RESOURCES_SECONDS)
        return resources.get(kind, 0.0)

    @property
    def gpus(self) -> int:
        """The number of processes with a GPU."""
        return int(self._number_of("GPU")) if self._gpus is None else self._gpus

    def in_flight(self, group: int) -> int:
        """Return the number of jobs that are handed to the cluster at the same time: two of these groups, or more."""
        slots = int(self._number_of("CPU") + self._number_of("GPU"))
        return min(MOST_IN_FLIGHT, max(2 * group, 2 * slots))

    def submit(self, job: StageJob) -> Future[StageFile]:
        """Start a job and return its output, or its error, when it is there.

        Raises
        ------
        StoppedError
            If the connection is closed, be it at this very moment.
        """
        asked = _Asked(f"{job.stage.name} {job.name}", as_text(job), Future())
        with self._lock:  # not between the steps of `close`
            if self._closed.is_set():
                raise StoppedError(STOPPED)
            if job.uses_gpu and self.gpus:
                self._waiting.append(asked)
                self._hand_out()
            else:
                needs = self._settings.resources.get(job.stage.name, JobResources())
                memory = {} if needs.memory is None else {"memory": needs.memory}
                options = {"name": asked.what, "num_cpus": needs.num_cpus, "scheduling_strategy": "SPREAD"}
                self._follow(self._function.options(**options, **memory).remote(*asked.inputs), asked)
        return asked.done

    def _hand_out(self) -> None:
        """Give the jobs that wait to idle processes with a GPU; have as many of them as there are GPUs."""
        while self._waiting and len(self.workers) < self.gpus:
            self.workers.append(worker := self.worker_type.remote())
            self._follow(worker.process.remote(), None, worker)
        while self._waiting and self._idle:
            worker, asked = self._idle.pop(), self._waiting.popleft()
            self._follow(worker.work_on.remote(*asked.inputs), asked, worker)

    def _follow(self, ref: "ObjectRef[Any]", asked: _Asked | None, worker: Any = None) -> None:  # noqa: ANN401
        self._running[ref] = asked, worker
        ref.future().add_done_callback(lambda answer: self._end(ref, answer))

    def _end(self, ref: "ObjectRef[Any]", answer: "Future[Any]") -> None:
        """Return a job's output or error, and give the process that had it the next one."""
        from ray.exceptions import ActorDiedError, RayActorError

        error = answer.exception()
        with self._lock:
            asked, worker = self._running.pop(ref, (None, None))
            if worker in self.workers and isinstance(error, ActorDiedError):
                self.workers.remove(worker)
                if asked is None and self._waiting:  # it was started in vain, for this one
                    asked = self._waiting.popleft()
            elif worker in self.workers:
                self._idle.append(worker)
            self._hand_out()
        if asked is None:  # a process has started, or the cluster is closed
            return
        if error is None:
            asked.done.set_result(StageFile.model_validate_json(answer.result()))
        elif wait_for_stop(0):  # a process that was ended on request is no loss to be made good
            asked.done.set_exception(StoppedError(STOPPED))
        elif isinstance(error, RayActorError) and not any(node["Alive"] for node in self._ray.nodes()):
            asked.done.set_exception(_raylet_died())
        else:
            asked.done.set_exception(explained(error, asked.what))

    def _stop_when_asked(self) -> None:
        while not self._closed.is_set():
            if wait_for_stop(STOP_SECONDS):
                self._cancel()
                self._closed.wait(STOP_SECONDS)

    def _cancel(self) -> None:
        """End all jobs at once: files are written atomically, so that nothing half done is left."""
        with self._lock:
            running, waiting, workers = dict(self._running), list(self._waiting), list(self.workers)
            for dropped in (self._waiting, self.workers, self._idle):
                dropped.clear()
        for asked in waiting:
            asked.done.set_exception(StoppedError(STOPPED))
        for worker in workers:
            self._ray.kill(worker)
        for ref, (_, worker) in running.items():
            if worker is None:
                self._ray.cancel(ref, force=True)

    def close(self) -> None:
        """End what still runs, and disconnect; a Ray of this machine alone ends."""
        with self._lock:
            self._closed.set()
        self._watcher.join()
        self._cancel()
        with self._lock:
            left, self._running = self._running, {}
        for asked, _ in left.values():  # after the end of the connection, Ray would never answer
            if asked is not None:
                asked.done.set_exception(StoppedError(STOPPED))
        self._ray.shutdown()


def check_engine(settings: EngineSettings) -> str:
    """Check what can be known of an engine without Ray, and return the cluster's address, or `local`.

    Raises
    ------
    ClusterError
        If Ray is not installed, RAY_ADDRESS is not taken, a setting names a stage that does not exist, or nothing
        listens at the address.
    """
    if find_spec("ray") is None:
        raise ClusterError("engine.kind: ray is not installed: install fineweb-mask with the extra 'ray'")
    if unknown := settings.resources.keys() - set(names := stage_names() if settings.resources else []):
        raise ClusterError(f"engine.resources: no stage {sorted(unknown)[0]!r}, there are {', '.join(names)}")
    address = os.environ.get("RAY_ADDRESS") or LOCAL
    if address == LOCAL:
        return address
    if address == "auto" or "://" in address:
        raise ClusterError(
            f"RAY_ADDRESS: {address!r} is not taken: set it to host:port of the cluster's head, and start the run on a "
            "machine of the cluster"
        )
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS).close()
    except (OSError, ValueError, OverflowError) as error:
        raise unreachable(address, error) from error
    return address


def unreachable(address: str, error: object) -> ClusterError:
    """Return the error for an address at which no cluster answers."""
    return ClusterError(
        f"RAY_ADDRESS: no Ray cluster answers at {address}: {error}; if it asks for a token, set "
        "RAY_AUTH_MODE=token and RAY_AUTH_TOKEN as on its nodes"
    )


def _connect(settings: EngineSettings) -> Any:  # noqa: ANN401 - a module that is not always there
    address = check_engine(settings)
    os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"  # read by the import: no call after the end starts another Ray
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing calls home
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "1")  # a job that has no GPU sees none
    # Also read by the import: else a run in the background, whose parent has ended, would end with the raylet.
    with _environment({"RAY_RAYLET_PID": str(os.getpid())}):
        import ray

        logging.getLogger("ray").setLevel(logging.ERROR)  # it says how to use Ray
        ray._private.worker._worker_logs_enabled = False  # it would print the last lines of a raylet that died
        connect = partial(ray.init, address, namespace="fineweb-mask", log_to_driver=False, configure_logging=False)
        if address == LOCAL:
            _start_on_this_machine(connect)
        else:
            _within(CONNECT_SECONDS, connect, address)
    return ray


def _start_on_this_machine(connect: Callable[..., object]) -> None:
    on_sigterm = signal.getsignal(signal.SIGTERM)
    # Ray leaves its mode set: a cluster without tokens, to which this process connects later, would not work.
    own = {"RAY_AUTH_TOKEN": _TOKEN, "RAY_AUTH_MODE": os.environ.get("RAY_AUTH_MODE")}
    try:
        with _environment(own):
            connect(include_dashboard=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ClusterError(f"engine.kind: ray cannot be started on this machine: {error}: check its logs") from error
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, on_sigterm)  # Ray's own would end the run without a word


@contextmanager
def _environment(own: Mapping[str, str | None]) -> Iterator[None]:
    """Set environment variables, or leave out those that are None, while the block runs; what it starts keeps them."""
    before = {name: os.environ.get(name) for name in own}
    _set(own)
    try:
        yield
    finally:
        _set(before)


def _set(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _within(seconds: float, connect: Callable[[], object], address: str) -> None:
    """Connect to a cluster in a thread that is left behind if it takes longer: Ray itself has no limit."""
    failed: list[Exception] = []

    def attempt() -> None:
        try:
            connect()
        except (ConnectionError, RuntimeError, ValueError) as error:
            failed.append(error)

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise unreachable(address, f"what listens there is no head of a cluster, or takes more than {seconds:.0f} s")
    if failed:
        raise unreachable(address, failed[0]) from failed[0]


def _raylet_died() -> ClusterError:
    return ClusterError(
        "the raylet, Ray's process on this machine, died: run again to resume; its logs are in /tmp/ray/session_latest"
    )


def explained(error: BaseException, what: str) -> BaseException:
    """Return the error to raise for a job that failed on a cluster, and log the node that it failed on."""
    from ray.exceptions import LocalRayletDiedError, RayTaskError, TaskCancelledError

    if isinstance(error, TaskCancelledError):
        return StoppedError(STOPPED)
    if isinstance(error, RayTaskError):
        cause: BaseException = error.cause
        where = ", ".join(getattr(cause, "__notes__", []))  # the process that failed says which node it is on
        logger.warning("%s failed %s: %s: %s", what, where, type(cause).__name__, cause)
        return cause
    logger.warning("%s: %s: %s", what, type(error).__name__, error)
    if isinstance(error, LocalRayletDiedError):
        return _raylet_died()
    if is_transient(error):
        return LostJobError(f"{what}: its process on the Ray cluster ended: {' '.join(str(error).split())}: run again")
    return error
