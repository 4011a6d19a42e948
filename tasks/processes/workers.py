"""Send messages to worker processes and take the answers in order; `serve` answers them there.

Processes and not threads: fastText, trafilatura and datatrove hold Python's interpreter lock, spaCy inside datatrove
must not be used by two threads, and a page that takes forever, or ends the process that parses it, costs only itself.

One process loads what the work takes, and is forked for each worker, so that they share its memory. A worker that ends
costs the message that it had, and another one is forked.

The pools of the standard library and of pebble do not fit. Their workers import the caller's `__main__` again ("spawn",
"forkserver"), which breaks a script without a `__main__` guard, or are forks of this process, which has threads and
whose fork could hang. `concurrent.futures` has no limit on the time of one item, and loses all items where one ends its
process.
"""

import atexit
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
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
    """A process, by its number, and one end of its socket."""

    process: int
    connection: Connection

    def ask(self, message: bytes | memoryview, seconds: float | None) -> bytes | Failure:
        """Return the answer, or why there is none: then the process has ended."""
        try:
            self.connection.send_bytes(message)
            if self.connection.poll(seconds):
                return self.connection.recv_bytes()
        except (EOFError, OSError):
            return "ended"
        os.kill(self.process, signal.SIGKILL)
        return "too_slow"


class Workers:
    """Worker processes, in which a module's `serve` answers messages; several threads may use them at the same time.

    They are started when they are needed, and end with this process, whose end closes their sockets.

    Parameters
    ----------
    module, work
        What is run with `python -m`, and its first argument.
    processes
        How many.
    seconds
        Most time for an answer, if limited. The same pages must time out on a busy machine and on a quiet one: a usual
        one takes 0.02.
    """

    def __init__(self, module: str, work: str, processes: int, *, seconds: float | None = None) -> None:
        self.closed = False
        self._command, self._seconds, self._processes = [sys.executable, "-m", module, work], seconds, processes
        self._threads = ThreadPoolExecutor(processes, thread_name_prefix="workers")
        self._lock = threading.Lock()
        self._server: subprocess.Popen[bytes] | None = None  # the process that forks
        self._requests: socket.socket  # to it
        self._free: SimpleQueue[_Worker | None] = SimpleQueue()  # None: to be started
        for _ in range(processes):
            self._free.put(None)

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Yield what a function, which may call `ask`, returns for each item, in their order.

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
                if len(pending) >= AHEAD * self._processes:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()

    def ask(self, message: bytes | memoryview) -> bytes | Failure:
        """Return a process's answer to a message, or why there is none; called in a thread of `map`.

        Where a process ends, which something else may have caused, another is asked once more.

        Raises
        ------
        WorkerProcessError
            If the workers are closed meanwhile.
        """
        answer: bytes | Failure = "ended"
        worker = self._free.get()
        for _ in range(2):
            worker = worker or self._forked()
            answer = "ended" if worker is None else worker.ask(message, self._seconds)
            if isinstance(answer, bytes):
                break
            worker = None
            if answer == "too_slow" or self.closed:
                break
        self._free.put(worker)
        if self.closed and not isinstance(answer, bytes):
            raise WorkerProcessError("the worker processes were closed: run again")
        return answer

    def close(self) -> None:
        """End the processes; what they are asked then, or have not answered, is an error."""
        self.closed = True
        with self._lock:
            self._end()

    def _forked(self) -> _Worker | None:
        """Start a process; None if it ends at once, or the workers are closed."""
        ours, theirs = socket.socketpair()
        with theirs, self._lock:
            if not self.closed:
                if self._server is None or self._server.poll() is not None:
                    self._end()
                    self._start()
                with suppress(OSError):
                    socket.send_fds(self._requests, [b"."], [theirs.fileno()])
        connection = Connection(ours.detach())
        try:
            return _Worker(int(connection.recv_bytes()), connection)
        except (EOFError, OSError):
            return None

    def _start(self) -> None:
        """Start the process that forks for each socket that it is sent."""
        self._requests, theirs = socket.socketpair()
        with theirs:
            self._server = subprocess.Popen(  # noqa: S603 - this interpreter, a module of this package
                self._command,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, **FORK_ENVIRONMENT},
                start_new_session=True,  # an interrupt from the terminal must reach only this process
            )

    def _end(self) -> None:
        """End the process that forks, and its forks."""
        if self._server is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._server.pid, signal.SIGKILL)
            self._server.wait()
            self._requests.close()
            self._server = None


def cores() -> int:
    """Return how many processes can compute at the same time."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_running: dict[tuple[object, ...], Workers] = {}
_lock = threading.Lock()


def running_workers(module: str, work: str, processes: int, *, seconds: float | None = None) -> Workers:
    """Return the `Workers` of this process that do such work; they are kept until `end_workers`."""
    key = (module, work, processes, seconds)
    with _lock:
        if key not in _running or _running[key].closed:
            _running[key] = Workers(module, work, processes, seconds=seconds)
        return _running[key]


def end_workers() -> None:
    """End all processes of `running_workers`; its next call starts new ones."""
    with _lock:
        while _running:
            _running.popitem()[1].close()


atexit.register(end_workers)


def serve(answer: Callable[[bytes], bytes]) -> None:
    """Fork for every socket that is sent to standard input, and answer every message from it in the fork.

    This process, which must have one thread, ends when standard input is closed; the forks share the memory of what it
    loaded.
    """
    gc.collect()
    gc.freeze()  # a later collection would write to the shared memory pages and so copy them
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # forks that ended are removed
    with socket.socket(fileno=sys.stdin.fileno()) as requests:
        while received := socket.recv_fds(requests, 1, 1)[1]:
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                requests.close()
                _answer_all(answer, received[0])
                os._exit(0)
            os.close(received[0])


def _answer_all(answer: Callable[[bytes], bytes], handle: int) -> None:
    """Send this process's number, and then answer every message, until the other end is closed."""
    connection = Connection(handle)
    with suppress(EOFError, ConnectionError, KeyboardInterrupt):
        connection.send_bytes(str(os.getpid()).encode())
        while True:
            connection.send_bytes(answer(connection.recv_bytes()))
