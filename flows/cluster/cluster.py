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
from collections import Counter
from concurrent.futures import Future
from functools import lru_cache, partial
from importlib.util import find_spec
from time import monotonic
from typing import TYPE_CHECKING, Any

from fineweb_mask.flows.cluster.ray_worker import GpuWorker, as_text, work_on
from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.runtime.stopping import StoppedError
from fineweb_mask.tasks.processes.workers import WorkerProcessError
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

LOCAL = "local"
"""Ray's name for a cluster of this machine alone, which is started."""
ANSWER_SECONDS = 10.0
"""Time that the cluster's head has to take a connection; Ray itself would try for minutes, and then end the process."""
ENVIRONMENT = {
    "RAY_ENABLE_AUTO_CONNECT": "0",  # no call after the end starts another Ray
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing calls home
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",  # a job that has no GPU sees none
}
"""Read by Ray's import; a value that the user has set is kept."""


class ClusterError(SettingsError):
    """Ray is not installed, or the cluster cannot be reached."""


class LostJobError(WorkerProcessError):
    """A process or a node of the cluster ended again and again with a job; a retry may help."""


class RayCluster:
    """A connection to a Ray cluster, or a Ray of this machine alone.

    Ray starts a process with a GPU as soon as a node has one free, also one that joins later, and again if it ends.

    Parameters
    ----------
    gpus
        Processes that hold a GPU each; None: as many as the cluster has, also of nodes that join later.

    Raises
    ------
    ClusterError
        If Ray is not installed, or the cluster cannot be reached.
    """

    def __init__(self, gpus: int | None = None) -> None:
        self._ray = _connect()
        self._gpus = gpus
        # Exported to the cluster once.
        self._function = self._ray.remote(max_retries=RETRIES, scheduling_strategy="SPREAD")(work_on)
        again = {"max_restarts": RETRIES, "max_task_retries": RETRIES}
        self.worker_type = self._ray.remote(num_gpus=1, num_cpus=1, **again)(GpuWorker)
        self.workers: Counter[Any] = Counter()  # processes that hold a GPU, or wait for one, and the jobs that each has
        self._running: dict[ObjectRef[Any], tuple[str, Future[StageFile], Any]] = {}  # a job, and its process
        self._lock = threading.RLock()  # a job may end while it is started
        self._is_closed = False
        self._resources = lru_cache(1)(lambda _period: self._ray.cluster_resources())

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
            If the jobs were ended.
        """
        what, text, done = f"{job.stage.name} {job.name}", as_text(job), Future[StageFile]()
        with self._lock:
            if self._is_closed:
                raise StoppedError("stopped on request")
            worker = None
            if job.uses_gpu and self.gpus:
                if len(self.workers) < self.gpus:
                    self.workers[self.worker_type.remote()] = 0
                worker, _ = self.workers.most_common()[-1]  # the one that has least to do
                self.workers[worker] += 1
                ref = worker.work_on.remote(*text)
            else:
                ref = self._function.options(name=what).remote(*text)
            self._running[ref] = what, done, worker
        ref.future().add_done_callback(partial(self._end, ref))
        return done

    def _end(self, ref: "ObjectRef[Any]", answer: "Future[Any]") -> None:
        """Return a job's output or error."""
        from ray.exceptions import ActorDiedError

        error = answer.exception()
        with self._lock:
            if (running := self._running.pop(ref, None)) is None:  # it was ended
                return
            what, done, worker = running
            if isinstance(error, ActorDiedError):
                self.workers.pop(worker, None)  # another takes its place
            elif worker in self.workers:
                self.workers[worker] -= 1
        if error is None:
            done.set_result(StageFile.model_validate_json(answer.result()))
        else:
            done.set_exception(explained(error, what))

    def cancel(self) -> None:
        """End all jobs at once: files are written atomically, so that nothing half done is left."""
        with self._lock:
            self._is_closed = True
            running, self._running = self._running, {}
        for worker in self.workers:
            self._ray.kill(worker)
        for ref, (_, done, worker) in running.items():
            if worker is None:
                self._ray.cancel(ref, force=True)
            done.set_exception(StoppedError("stopped on request"))

    def close(self) -> None:
        """End what still runs, and disconnect; a Ray of this machine alone ends."""
        self.cancel()
        self._ray.shutdown()


def check_engine() -> str:
    """Check what can be known of a cluster without Ray, and return its address, or `local`.

    Raises
    ------
    ClusterError
        If Ray is not installed, RAY_ADDRESS is not taken, or nothing listens at the address.
    """
    if find_spec("ray") is None:
        raise ClusterError("engine.kind: ray is not installed: install fineweb-mask with the extra 'ray'")
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
        raise _unreachable(address, error) from error
    return address


def _unreachable(address: str, error: object) -> ClusterError:
    """Return the error for an address at which no cluster answers."""
    return ClusterError(
        f"RAY_ADDRESS: no Ray cluster answers at {address}: {error}; if it asks for a token, set "
        "RAY_AUTH_MODE=token and RAY_AUTH_TOKEN as on its nodes"
    )


def _connect() -> Any:  # noqa: ANN401 - a module that is not always there
    address = check_engine()
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if address == LOCAL:  # what its processes ask of each other; Ray's own would be a file in the home folder
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    import ray

    logging.getLogger("ray").setLevel(logging.ERROR)  # it says how to use Ray
    on_sigterm = signal.getsignal(signal.SIGTERM)
    dashboard = False if address == LOCAL else None
    connect = partial(ray.init, namespace="fineweb-mask", log_to_driver=False, configure_logging=False)
    try:
        connect(address, include_dashboard=dashboard)
    except (ConnectionError, RuntimeError, ValueError) as error:
        if address != LOCAL:
            raise _unreachable(address, error) from error
        raise ClusterError(f"engine.kind: ray cannot be started on this machine: {error}: check its logs") from error
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, on_sigterm)  # Ray's own would end the run without a word
    return ray


def explained(error: BaseException, what: str) -> BaseException:
    """Return the error to raise for a job that failed on a cluster, and log the node that it failed on."""
    from ray.exceptions import RayTaskError, TaskCancelledError

    if isinstance(error, TaskCancelledError):
        return StoppedError("stopped on request")
    if isinstance(error, RayTaskError):
        cause: BaseException = error.cause
        where = ", ".join(getattr(cause, "__notes__", []))  # the process that failed says which node it is on
        logger.warning("%s failed %s: %s: %s", what, where, type(cause).__name__, cause)
        return cause
    logger.warning("%s: %s: %s", what, type(error).__name__, error)
    if is_transient(error):
        return LostJobError(f"{what}: its process on the Ray cluster ended: {' '.join(str(error).split())}: run again")
    return error
