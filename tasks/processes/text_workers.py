"""Send texts to worker processes, one for each core, and take the answers in order.

Processes and not threads: trafilatura and datatrove hold Python's interpreter lock, spaCy inside datatrove must not be
used by two threads, and a page that takes forever, or ends the process that parses it, costs only itself.
"""

import atexit
import json
import os
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from multiprocessing.connection import Connection
from typing import Any, Literal, Self, TypeVar

from fineweb_mask.models.runtime.stopping import raise_if_stopped

AHEAD = 4
"""Items per process that are read before the first has its answer."""

Item = TypeVar("Item")
Result = TypeVar("Result")
Failure = Literal["too_slow", "ended"]


class _Worker:
    """One process. It ends with this one, whose end closes its socket."""

    def __init__(self, work: str) -> None:
        ours, theirs = socket.socketpair()
        self._process = subprocess.Popen(  # noqa: S603 - this interpreter, a module of this package
            [sys.executable, "-m", "fineweb_mask.tasks.processes.text_worker", str(theirs.fileno()), work],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # an interrupt from the terminal must reach only this process
        )
        theirs.close()
        self._connection = Connection(ours.detach())

    def ask(self, message: bytes, seconds: float) -> bytes | Failure:
        """Return the answer, or why there is none: the process has then ended."""
        try:
            self._connection.send_bytes(message)
            if self._connection.poll(seconds):
                return self._connection.recv_bytes()
        except (EOFError, OSError):
            self.close()
            return "ended"
        self.close()
        return "too_slow"

    @property
    def is_closed(self) -> bool:
        """Whether the process has ended."""
        return self._connection.closed

    def close(self) -> None:
        """End the process."""
        self._connection.close()
        self._process.kill()
        self._process.wait()


class TextWorkers:
    """Worker processes, which are started when they are needed; several threads may use them at the same time.

    Parameters
    ----------
    work
        What `text_worker` does with a message, as JSON.
    processes
        How many.
    seconds
        Most time for an answer. The same pages must time out on a busy machine and on a quiet one: a usual one takes
        0.02.
    """

    def __init__(self, work: str, processes: int, seconds: float) -> None:
        self._work = work
        self._seconds = seconds
        self._ahead = AHEAD * processes
        self._threads = ThreadPoolExecutor(processes, thread_name_prefix="texts")
        self._own = threading.local()
        self._workers: list[_Worker] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes."""
        self._threads.shutdown(cancel_futures=True)
        for worker in self._workers:
            worker.close()

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
                if len(pending) >= self._ahead:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()

    def ask(self, message: bytes) -> bytes | Failure:
        """Return a process's answer to a message, or why there is none; called in a thread of `map`.

        A process that ends is replaced, and asked once more.
        """
        answer: bytes | Failure = "ended"
        for _ in range(2):  # it may have ended for a reason of its own
            worker: _Worker | None = getattr(self._own, "worker", None)
            if worker is None or worker.is_closed:
                worker = self._own.worker = _Worker(self._work)
                self._workers.append(worker)
            if (answer := worker.ask(message, self._seconds)) != "ended":
                break
        return answer


def cores() -> int:
    """Return how many processes can compute at the same time."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def _workers(work: str, seconds: float) -> TextWorkers:
    workers = TextWorkers(work, cores(), seconds)
    atexit.register(workers.close)
    return workers


def text_workers(work: Any, seconds: float) -> TextWorkers:  # noqa: ANN401 - JSON values
    """Return the processes of this one that do such work; they are kept until it ends."""
    return _workers(json.dumps(work), seconds)
