"""Score one Parquet file in several processes that share one copy of the models.

Processes and not threads, because the fastText package holds Python's interpreter lock while it predicts. The workers
are forked by a separate Python process (`scoring_worker.py`), because this process has threads and its fork could hang.
They are kept from shard to shard. If one of them dies, all end with a transient error, and a retry starts new ones.

The standard library's "forkserver" pool does not fit: its workers import the caller's `__main__` again, which breaks a
script without a `__main__` guard, and its server keeps the first models in memory until the caller ends.
"""

import atexit
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Generator, Hashable, Sequence
from contextlib import closing, suppress
from itertools import count
from multiprocessing.connection import Connection, wait
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fineweb_mask.models.errors import ModelError
from fineweb_mask.models.runtime.progress import track_by_size
from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.tasks.inference.scorers import QualityModel
from fineweb_mask.tasks.inference.scoring_worker import STEP_ROWS, Answer
from fineweb_mask.tasks.storage.parquet import VerifiedFile
from fineweb_mask.tasks.workspace.workspace import Workspace

FORKED_KINDS = frozenset({"fasttext"})
"""Kinds of scorers that read an Arrow column, compute on one thread and survive a fork: they do not use a GPU."""

ROWS_WORTH_PROCESSES = 20_000
"""With fewer rows, starting the workers takes about as long as they save."""

ROWS_WORTH_SPLITTING = 2_000
"""An idle worker takes half of another's rows if at least this many are left."""

WAIT_SECONDS = 0.5
"""How often a stop request is checked while waiting for workers."""

ENVIRONMENT = {
    # numpy and Arrow must not start threads: a fork copies only the thread that forks.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",  # jemalloc inside Arrow
    # Keep the memory of a batch for the next one; by default glibc returns it to the system each time.
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_MMAP_THRESHOLD_": str(2**28),
    "MALLOC_TRIM_THRESHOLD_": str(2**28),
}


class ScoringProcessError(ModelError, ConnectionError):
    """The scoring processes ended before they answered; a retry may help."""


class ScoringError(ModelError):
    """A scorer failed, or its model cannot be loaded."""


def useful_processes(rows: int, wanted: int | None) -> int:
    """Return how many processes to score `rows` documents with; `wanted` None means all available cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return 1 if rows < ROWS_WORTH_PROCESSES else wanted or cores


def pooled_models(models: Sequence[QualityModel], processes: int) -> list[QualityModel]:
    """Return the models that score in worker processes: none if `processes` is 1."""
    return [model for model in models if processes > 1 and model.settings.kind in FORKED_KINDS]


class Part(NamedTuple):
    """Rows [start, stop) of one row group."""

    row_group: int
    start: int
    stop: int


class Shares:
    """Divide the rows of a file among workers.

    Each worker takes a row group and scores it in steps of `STEP_ROWS`. When no row group is left, an idle worker takes
    the second half of the largest remainder. This costs little decoding: a row can only be reached by decoding all rows
    of its row group before it.

    Parameters
    ----------
    row_groups
        Number of rows of each row group.

    Examples
    --------
    >>> shares = Shares([10_000])
    >>> shares.next("first worker")
    Part(row_group=0, start=0, stop=500)
    >>> shares.next("second worker")
    Part(row_group=0, start=5000, stop=5500)
    """

    def __init__(self, row_groups: Sequence[int]) -> None:
        self._untouched = deque(Part(index, 0, rows) for index, rows in enumerate(row_groups) if rows)
        self._left: dict[Hashable, Part] = {}

    def next(self, worker: Hashable) -> Part | None:
        """Return the next step of a worker, or None if no rows are left for it."""
        left = self._left.get(worker)
        if left is None or left.start == left.stop:
            left = self._untouched.popleft() if self._untouched else self._split_largest()
            if left is None:
                return None
        step = left._replace(stop=min(left.start + STEP_ROWS, left.stop))
        self._left[worker] = left._replace(start=step.stop)
        return step

    def _split_largest(self) -> Part | None:
        worker, largest = max(self._left.items(), key=lambda item: item[1].stop - item[1].start, default=(0, None))
        if largest is None or largest.stop - largest.start < ROWS_WORTH_SPLITTING:
            return None
        steps = (largest.stop - largest.start) // (2 * STEP_ROWS)
        middle = largest.start + steps * STEP_ROWS
        self._left[worker] = largest._replace(stop=middle)
        return largest._replace(start=middle)


class ScoringProcesses:
    """Start worker processes that share one copy of the models; several threads may score at the same time.

    The models have absolute paths and are of kinds in `FORKED_KINDS`.

    Raises
    ------
    ScoringError
        If a model cannot be loaded.
    """

    def __init__(self, models: list[QualityModel], processes: int) -> None:
        self.scorers = len(models)
        self._runs = count()
        self._closed = False
        pairs = [socket.socketpair() for _ in range(processes)]
        sockets = [theirs.fileno() for _, theirs in pairs]
        described = json.dumps([model.model_dump(mode="json") for model in models])
        self.server = subprocess.Popen(  # noqa: S603 - this interpreter, a module of this package
            [sys.executable, "-m", "fineweb_mask.tasks.inference.scoring_worker", described, *map(str, sockets)],
            stdin=subprocess.PIPE,  # closes, and so ends the server, when this process ends for any reason
            stdout=subprocess.DEVNULL,
            pass_fds=sockets,
            env={**os.environ, **ENVIRONMENT},
            start_new_session=True,  # an interrupt from the terminal must reach only this process
        )
        connections = [Connection(ours.detach()) for ours, _ in pairs]
        for _, theirs in pairs:
            theirs.close()
        try:
            _checked(self._receive(connections[0]))  # the models are loaded
        except BaseException:
            self.close()
            raise
        self._idle: SimpleQueue[Connection] = SimpleQueue()
        for connection in connections:
            self._idle.put(connection)

    def score(self, path: Path, part: tuple[float, float] = (0.0, 0.0)) -> NDArray[np.float32]:
        """Return the scores of the `text` column of a Parquet file, (scorers, rows).

        Raises
        ------
        ScoringError
            If a scorer fails.
        OSError
            If the file cannot be read, or the processes ended (`ScoringProcessError`).
        StoppedError
            If a stop was requested.
        """
        with VerifiedFile(path) as file:
            row_groups = [file.metadata.row_group(index).num_rows for index in range(file.num_row_groups)]
        scores = np.empty((self.scorers, sum(row_groups)), dtype=np.float32)
        with closing(self._score_steps(path, row_groups, scores)) as steps:
            for _ in track_by_size("documents scored", steps, sum(row_groups), int, part=part):
                pass
        return scores

    def _score_steps(
        self, path: Path, row_groups: list[int], scores: NDArray[np.float32]
    ) -> Generator[int, None, None]:
        """Fill `scores` (scorers, rows) with the help of every idle worker; yield the number of rows of each step."""
        run, shares, first_rows = next(self._runs), Shares(row_groups), np.cumsum([0, *row_groups])
        busy: dict[Connection, Part] = {}

        def request_step(connection: Connection) -> bool:
            step = shares.next(connection)
            if step is None:
                self._idle.put(connection)
                return False
            busy[connection] = step
            with suppress(OSError):  # if the worker ended, `_receive` raises the error
                connection.send((run, str(path), *step))
            return True

        rows_left, is_shared_out = sum(row_groups), False
        try:
            while rows_left:
                raise_if_stopped()
                with suppress(Empty):
                    while not is_shared_out:
                        is_shared_out = not request_step(self._idle.get(timeout=0 if busy else WAIT_SECONDS))
                ready = wait(list(busy), WAIT_SECONDS if busy else 0)
                for connection in [connection for connection in busy if connection in ready]:
                    answer, step = self._receive(connection), busy.pop(connection)
                    if not request_step(connection):
                        is_shared_out = True
                    first = first_rows[step.row_group]
                    scores[:, first + step.start : first + step.stop] = _checked(answer)
                    rows_left -= step.stop - step.start
                    yield step.stop - step.start
        finally:
            for connection in busy:
                with suppress(EOFError, OSError):
                    connection.recv()
                self._idle.put(connection)

    def _receive(self, connection: Connection) -> Answer:
        try:
            answer: Answer = connection.recv()
        except (EOFError, OSError) as error:
            raise ScoringProcessError(
                "the scoring processes were closed"
                if self._closed
                else "a scoring process ended before it answered: if the machine is short of memory, "
                "lower engine.score_processes"
            ) from error
        return answer

    def close(self) -> None:
        """End the processes; files that are still being scored fail."""
        self._closed = True
        if self.server.stdin is not None:
            self.server.stdin.close()
        self.server.wait()


def _checked(answer: Answer) -> NDArray[np.float32]:
    """Return the scores of an answer, or raise its error."""
    if isinstance(answer, OSError):
        raise answer
    if isinstance(answer, str):
        raise ScoringError(answer)
    return answer


_running: dict[tuple[int, tuple[QualityModel, ...]], ScoringProcesses] = {}
_lock = threading.Lock()


def score_file(
    workspace: Workspace,
    models: list[QualityModel],
    path: Path,
    processes: int,
    *,
    part: tuple[float, float] = (0.0, 0.0),
) -> NDArray[np.float32]:
    """Return the scores of a Parquet file's `text` column, (models, rows); the workers are kept for the next file.

    The models are of kinds in `FORKED_KINDS`, see `pooled_models`.

    Raises
    ------
    ScoringError
        If a model cannot be loaded or a scorer fails.
    OSError
        If the file cannot be read, or the processes ended (`ScoringProcessError`).
    StoppedError
        If a stop was requested.
    """
    placed = [model.model_copy(update={"path": str(workspace.local(model.path))}) for model in models]
    key = (processes, tuple(placed))
    with _lock:
        if key not in _running:
            _running[key] = ScoringProcesses(placed, processes)
        running = _running[key]
    try:
        return running.score(path, part)
    except ScoringProcessError:
        with _lock:
            if _running.get(key) is running:
                del _running[key]
        running.close()
        raise


def score_texts(
    workspace: Workspace, models: list[QualityModel], texts: list[str], processes: int
) -> NDArray[np.float32]:
    """Return the scores of texts, (models, n), as `score_file` does; the workers read them from a temporary file."""
    if not models:
        return np.empty((0, len(texts)), dtype=np.float32)
    with tempfile.TemporaryDirectory(dir=workspace.root, prefix=".texts", suffix=".partial") as folder:
        path = Path(folder) / "texts.parquet"
        pq.write_table(pa.table({"text": pa.array(texts, pa.large_string())}), path, row_group_size=STEP_ROWS)
        return score_file(workspace, models, path, processes)


def end_scoring_processes() -> None:
    """End all workers; the next call of `score_file` starts new ones."""
    with _lock:
        while _running:
            _running.popitem()[1].close()


atexit.register(end_scoring_processes)
