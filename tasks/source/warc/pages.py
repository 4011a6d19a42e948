"""Extract the texts of pages in worker processes, in order, with a limit on the time of a page.

Processes and not threads, for two reasons: trafilatura holds Python's interpreter lock, and a page that takes forever,
or ends the process that parses it, costs only itself.
"""

import atexit
import os
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Self

from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.tasks.source.warc.page_worker import NO_TEXT, TEXT

SECONDS = 60.0
"""Most time for a page. A usual one takes 0.02; the same pages must time out on a busy machine and on a quiet one."""

AHEAD = 4
"""Pages per process that are read before the first has its text."""


class PageText(NamedTuple):
    """The text of a page, or why it has none: `no_text`, `broken_page`, `too_slow`."""

    text: str | None
    problem: str | None


class PageWorker:
    """One process that extracts texts. It ends with this one, whose end closes its socket."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self._process = subprocess.Popen(  # noqa: S603 - this interpreter, a module of this package
            [sys.executable, "-m", "fineweb_mask.tasks.source.warc.page_worker", str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # an interrupt from the terminal must reach only this process
        )
        theirs.close()
        self._connection = Connection(ours.detach())

    def extract(self, page: bytes, seconds: float) -> PageText | None:
        """Return the text of a page; None if the process ended and another one has to be started."""
        try:
            self._connection.send_bytes(page)
            if not self._connection.poll(seconds):
                self.close()
                return PageText(None, "too_slow")
            kind, text = (message := self._connection.recv_bytes())[:1], message[1:]
        except (EOFError, OSError):
            self.close()
            return None
        if kind == TEXT:
            return PageText(text.decode(), None)
        return PageText(None, "no_text" if kind == NO_TEXT else "broken_page")

    @property
    def is_closed(self) -> bool:
        """Whether the process has ended."""
        return self._connection.closed

    def close(self) -> None:
        """End the process."""
        self._connection.close()
        self._process.kill()
        self._process.wait()


class PageWorkers:
    """Worker processes, one for each core, kept from file to file; several threads may use them at the same time."""

    def __init__(self, processes: int, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._ahead = AHEAD * processes
        self._threads = ThreadPoolExecutor(processes, thread_name_prefix="pages")
        self._own = threading.local()
        self._workers: list[PageWorker] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes."""
        self._threads.shutdown(cancel_futures=True)
        for worker in self._workers:
            worker.close()

    def extract(self, records: Iterable[dict[str, Any] | str]) -> Iterator[dict[str, Any] | str]:
        """Yield the records in their order, the value `page` of each replaced by a `text`, or a problem in its place.

        A record is a dictionary, or the problem for which it could not be read; one without a `page` stays as it is.
        """
        pending = deque[Future[dict[str, Any] | str]]()
        try:
            for record in records:
                raise_if_stopped()
                pending.append(self._threads.submit(self._with_text, record))
                if len(pending) >= self._ahead:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()

    def _with_text(self, record: dict[str, Any] | str) -> dict[str, Any] | str:
        if isinstance(record, str) or "page" not in record:
            return record
        found = self._extract(record.pop("page"))
        return found.problem or {**record, "text": found.text}

    def _extract(self, page: bytes) -> PageText:
        for _ in range(2):  # a process may have ended for a reason of its own
            worker: PageWorker | None = getattr(self._own, "worker", None)
            if worker is None or worker.is_closed:
                worker = self._own.worker = PageWorker()
                self._workers.append(worker)
            if (found := worker.extract(page, self._seconds)) is not None:
                return found
        return PageText(None, "broken_page")


@cache
def page_workers() -> PageWorkers:
    """Return the worker processes of this process."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    workers = PageWorkers(cores)
    atexit.register(workers.close)
    return workers
