"""Send messages to worker processes and take the answers in order; `serve` answers them there.

Processes and not threads: fastText, trafilatura and datatrove hold Python's interpreter lock, spaCy inside datatrove
must not be used by two threads, and a page that takes forever, or ends the process that parses it, costs only itself.

The pools of the standard library and of pebble do not fit. Their workers import the caller's `__main__` again ("spawn",
"forkserver"), which breaks a script without a `__main__` guard, or are forks of this process, which has threads and
whose fork could hang. `concurrent.futures` has no limit on the time of one item, and loses all items where one ends its
process.
"""

import atexit
import gc
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from queue import SimpleQueue
from typing import Literal, NamedTuple, TypeVar

from fineweb_mask.models.errors import ModelError
from fineweb_mask.models.runtime.stopping import raise_if_stopped

AHEAD = 4
"""Items per process that are taken before the first has its result."""

FORK_ENVIRONMENT = {
    # numpy and Arrow must not start threads: a fork copies only the thread that forks.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",  # jemalloc inside Arrow
    # Keep the memory of a message for the next one; by default glibc returns it to the system each time.
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_MMAP_THRESHOLD_": str(2**28),
    "MALLOC_TRIM_THRESHOLD_": str(2**28),
}

Item = TypeVar("Item")
Result = TypeVar("Result")
Failure = Literal["too_slow", "ended"]


class WorkerProcessError(ModelError, ConnectionError):
    """A worker process ended before it answered; a retry may help."""


class _Worker(NamedTuple):
    """One end of a socket, and the process at its other end or whose fork is there."""

    process: subprocess.Popen[bytes]
    connection: Connection

    def ask(self, message: bytes | memoryview, seconds: float | None) -> bytes | Failure:
        """Return the answer, or why there is none."""
        try:
            self.connection.send_bytes(message)
            return self.connection.recv_bytes() if self.connection.poll(seconds) else "too_slow"
        except (EOFError, OSError):
            return "ended"


class Workers:
    """Worker processes, in which a module's `serve` answers messages; several threads may use them at the same time.

    They end with this process, whose end closes their sockets.

    Parameters
    ----------
    module, work
        What is run with `python -m`, and its first argument.
    processes
        How many.
    seconds
        Most time for an answer, if limited. The same pages must time out on a busy machine and on a quiet one: a usual
        one takes 0.02.
    is_forked
        Whether they are forks of one process, which share the memory of what it loaded. One that ends is then not
        replaced. Others are started when they are needed.
    """

    def __init__(
        self, module: str, work: str, processes: int, *, seconds: float | None = None, is_forked: bool = False
    ) -> None:
        self.closed = ""
        """Why they were closed; empty while they run."""
        self._command, self._seconds, self._is_forked = [sys.executable, "-m", module, work], seconds, is_forked
        self._processes = processes
        self._threads = ThreadPoolExecutor(processes, thread_name_prefix="workers")
        self._lock = threading.Lock()
        self._started: set[subprocess.Popen[bytes]] = set()
        self._free: SimpleQueue[_Worker | None] = SimpleQueue()
        for worker in self._start(processes) if is_forked else [None] * processes:
            self._free.put(worker)

    def map(self, function: Callable[[Item], Result], items: Iterable[Item], *, ahead: int = AHEAD) -> Iterator[Result]:
        """Yield what a function, which may call `ask`, returns for each item, in their order.

        `ahead` items per process are taken before the first has its result.

        Raises
        ------
        StoppedError
            If a stop was requested.
        """
        pending = deque[Future[Result]]()
        try:
            for item in items:
                raise_if_stopped()
                pending.append(self._threads.submit(function, item))
                if len(pending) >= ahead * self._processes:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()

    def ask(self, message: bytes | memoryview) -> bytes | Failure:
        """Return a process's answer to a message, or why there is none; called in a thread of `map`.

        A process that ends is replaced, and asked once more, unless it is a fork; one that is too slow is ended.

        Raises
        ------
        WorkerProcessError
            If the workers are closed meanwhile.
        """
        answer: bytes | Failure = "ended"
        worker = self._free.get()
        for _ in range(1 if self._is_forked else 2):  # something else may have ended it
            if worker is None:
                worker = next(iter(self._start(1)), None)
            if worker is None or isinstance(answer := worker.ask(message, self._seconds), bytes):
                break
            if not self._is_forked:
                self._end(worker.process)
                worker = None
            if answer == "too_slow":
                break
        self._free.put(worker)
        if self.closed and not isinstance(answer, bytes):
            reason = self.closed
            raise WorkerProcessError(reason)
        return answer

    def close(self, reason: str = "the worker processes were closed: run again") -> None:
        """End the processes; what they are asked then, or have not answered, is an error with this message."""
        self.closed = self.closed or reason
        with self._lock:
            started = list(self._started)
        for process in started:
            self._end(process)

    def _start(self, sockets: int) -> list[_Worker]:
        """Start a process with so many sockets; none if the workers are closed."""
        with self._lock:
            if self.closed:
                return []
            ours, theirs = zip(*(socket.socketpair() for _ in range(sockets)), strict=True)
            numbers = [one.fileno() for one in theirs]
            process = subprocess.Popen(  # noqa: S603 - this interpreter, a module of this package
                [*self._command, *map(str, numbers)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=None if self._is_forked else subprocess.DEVNULL,
                pass_fds=numbers,
                env={**os.environ, **(FORK_ENVIRONMENT if self._is_forked else {})},
                start_new_session=True,  # an interrupt from the terminal must reach only this process
            )
            self._started.add(process)
        for one in theirs:
            one.close()
        return [_Worker(process, Connection(one.detach())) for one in ours]

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """End a process, with its forks."""
        with self._lock:
            if process in self._started:
                self._started.remove(process)
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def cores() -> int:
    """Return how many processes can compute at the same time."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_running: dict[tuple[object, ...], Workers] = {}
_lock = threading.Lock()


def running_workers(
    module: str, work: str, processes: int, *, seconds: float | None = None, is_forked: bool = False
) -> Workers:
    """Return the `Workers` of this process that do such work; they are kept until `end_workers`."""
    key = (module, work, processes, seconds, is_forked)
    with _lock:
        if key not in _running or _running[key].closed:
            _running[key] = Workers(module, work, processes, seconds=seconds, is_forked=is_forked)
        return _running[key]


def end_workers() -> None:
    """End all processes of `running_workers`; its next call starts new ones."""
    with _lock:
        while _running:
            _running.popitem()[1].close()


atexit.register(end_workers)


def serve(answer: Callable[[bytes], bytes], sockets: Sequence[int]) -> None:
    """Answer every message from each socket until its other end is closed.

    With several sockets, the process forks for each of them, and the forks share the memory of what it loaded; it must
    have one thread. When one fork ends, all do.

    Parameters
    ----------
    answer
        Returns the answer to a message.
    sockets
        Inherited file descriptors.
    """
    if len(sockets) == 1:
        _answer_all(answer, sockets[0])
        return
    gc.collect()
    gc.freeze()  # a later collection would write to the shared memory pages and so copy them
    context = multiprocessing.get_context("fork")
    forks = [context.Process(target=_answer_all, args=(answer, socket), daemon=True) for socket in sockets]
    for fork in forks:
        fork.start()
    wait([fork.sentinel for fork in forks])  # multiprocessing ends daemons at exit


def _answer_all(answer: Callable[[bytes], bytes], handle: int) -> None:
    connection = Connection(handle)
    with suppress(EOFError, ConnectionError, KeyboardInterrupt):
        while True:
            connection.send_bytes(answer(connection.recv_bytes()))
