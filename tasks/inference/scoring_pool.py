"""Scores one shard on several cores: the official fastText package holds Python's lock, so threads gain nothing.

A clean process of its own loads the models and forks the workers (`scoring_worker.py`): a fork of this one, with
its threads, could hang. Workers are kept from shard to shard. One that dies takes the rest with it and the error is one
that is tried again, with new workers.
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
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fineweb_mask.models.errors import ModelError
from fineweb_mask.models.runtime.progress import track_by_size
from fineweb_mask.models.runtime.stopping import StoppedError, raise_if_stopped
from fineweb_mask.tasks.inference.scorers import QualityModel
from fineweb_mask.tasks.inference.scoring_worker import STEP_ROWS
from fineweb_mask.tasks.workspace.workspace import Workspace

FORKED_KINDS = frozenset({"fasttext"})
"""Scorers that read an Arrow column, compute on one thread and hold nothing that a fork breaks, such as a GPU."""

ROWS_WORTH_PROCESSES = 20_000
"""Below this, starting the workers takes about as long as what they would save."""

WORTH_SHARING_ROWS = 2_000
"""Rows left in a row group that another worker may take half of."""

WAIT_SECONDS = 0.5
"""For an answer, before a request to stop is heard."""

ENVIRONMENT = {
    # numpy and Arrow start no thread: a fork must copy all of a process.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",  # jemalloc inside Arrow
    # A batch's memory is kept for the next, where glibc would give it back and be handed empty pages again.
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_MMAP_THRESHOLD_": str(2**28),
    "MALLOC_TRIM_THRESHOLD_": str(2**28),
}


class ScoringProcessError(ModelError, ConnectionError):
    """The scoring processes ended before they answered; trying again may help."""


class ScoringError(ModelError):
    """A scorer failed."""


def useful_processes(rows: int, wanted: int | None) -> int:
    """Return how many processes to score `rows` documents with; None wants every core that may be used."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return 1 if rows < ROWS_WORTH_PROCESSES else wanted or cores


def pooled_models(models: Sequence[QualityModel], processes: int) -> list[QualityModel]:
    """Return the models that score in processes of their own: none if there is only one process."""
    return [model for model in models if processes > 1 and model.settings.kind in FORKED_KINDS]


class Part(NamedTuple):
    """Rows [start, stop) of one row group."""

    row_group: int
    start: int
    stop: int


class Shares:
    """Who scores which rows of a file.

    A worker goes through a row group of its own, a step at a time. One that finds no more of them takes half of what is
    left of another's, for it can only reach a row by decoding all before it.

    Parameters
    ----------
    row_groups
        Rows of every row group.
    """

    def __init__(self, row_groups: Sequence[int]) -> None:
        self._untouched = deque(Part(index, 0, rows) for index, rows in enumerate(row_groups) if rows)
        self._left: dict[int, Part] = {}
        self._lock = threading.Lock()

    def next(self, worker: int) -> Part | None:
        """Return the rows that a worker scores next, or None once there are none for it."""
        with self._lock:
            left = self._left.get(worker)
            if left is None or left.start == left.stop:
                left = self._untouched.popleft() if self._untouched else self._half_of_another()
                if left is None:
                    return None
            step = Part(left.row_group, left.start, min(left.start + STEP_ROWS, left.stop))
            self._left[worker] = left._replace(start=step.stop)
            return step

    def _half_of_another(self) -> Part | None:
        worker, largest = max(self._left.items(), key=lambda item: item[1].stop - item[1].start, default=(0, None))
        if largest is None or largest.stop - largest.start < WORTH_SHARING_ROWS:
            return None
        steps = (largest.stop - largest.start) // (2 * STEP_ROWS)
        middle = largest.start + steps * STEP_ROWS
        self._left[worker] = largest._replace(stop=middle)
        return largest._replace(start=middle)


class _Job(NamedTuple):
    """One file on its way through the workers."""

    run: int
    path: Path
    shares: Shares
    first_rows: NDArray[np.int64]
    scores: NDArray[np.float32]
    ended: threading.Event
    done: "SimpleQueue[int | None]"  # rows of every part that came back; None: one failed


def _done(job: _Job, asking: Sequence["Future[None]"], rows: int) -> Iterator[int]:
    """Yield how many rows come back, until all have or nobody asks for more."""
    while rows > 0:
        raise_if_stopped()
        nobody_asks = all(future.done() for future in asking)
        try:
            part = job.done.get(timeout=WAIT_SECONDS)
        except Empty:
            if nobody_asks:
                return
            continue
        if part is None:
            return
        rows -= part
        yield part


class ScoringProcesses:
    """Workers that share one copy of the models.

    Parameters
    ----------
    models
        Models with absolute paths, of kinds in `FORKED_KINDS`.
    processes
        Number of workers.

    Raises
    ------
    ScoringError
        If a model cannot be loaded.
    """

    def __init__(self, models: list[QualityModel], processes: int) -> None:
        self.scorers = len(models)
        pairs = [socket.socketpair() for _ in range(processes)]
        sockets = [theirs.fileno() for _, theirs in pairs]
        described = json.dumps([model.model_dump(mode="json") for model in models])
        self.server = subprocess.Popen(  # noqa: S603 - this interpreter, a module of this package
            [sys.executable, "-m", "fineweb_mask.tasks.inference.scoring_worker", described, *map(str, sockets)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=sockets,
            env={**os.environ, **ENVIRONMENT},
            start_new_session=True,  # an interrupt from the terminal is ours to handle
        )
        self._connections = [Connection(ours.detach()) for ours, _ in pairs]
        for _, theirs in pairs:
            theirs.close()
        self._idle: SimpleQueue[Connection] = SimpleQueue()
        self._runs = count()
        self._threads = ThreadPoolExecutor(processes, thread_name_prefix="scoring")
        try:
            for connection in self._connections:
                self._answer(connection)
                self._idle.put(connection)
        except BaseException:
            self.close()
            raise

    @property
    def processes(self) -> int:
        """The number of workers."""
        return len(self._connections)

    def score(self, path: Path, part: tuple[float, float] = (0.0, 0.0)) -> NDArray[np.float32]:
        """Return the scores of the `text` column of a Parquet file, (scorers, rows).

        `part` says what part of the caller's work this is, as `fineweb_mask.models.runtime.progress.track` takes it.

        Raises
        ------
        ScoringError
            If a scorer fails.
        OSError
            If the file cannot be read, or the processes ended (`ScoringProcessError`).
        """
        with pq.ParquetFile(path) as file:
            rows = [file.metadata.row_group(index).num_rows for index in range(file.num_row_groups)]
        scores = np.empty((self.scorers, sum(rows)), dtype=np.float32)
        job = _Job(
            next(self._runs), path, Shares(rows), np.cumsum([0, *rows]), scores, threading.Event(), SimpleQueue()
        )
        pending: list[Future[None]] = []
        try:
            pending = [self._threads.submit(self._ask, job, worker) for worker in range(self.processes)]
            for _ in track_by_size("documents scored", _done(job, pending, sum(rows)), sum(rows), int, part=part):
                pass
            for future in pending:
                future.result()
        except (ScoringError, StoppedError):
            raise
        except (CancelledError, RuntimeError) as error:  # how a closed executor answers
            raise ScoringProcessError("the scoring processes were closed") from error
        finally:
            job.ended.set()
            wait(pending)
        return scores

    def _ask(self, job: "_Job", worker: int) -> None:
        connection = self._idle.get()
        try:
            while not job.ended.is_set() and (part := job.shares.next(worker)) is not None:
                self._request(connection, json.dumps({"run": job.run, "path": str(job.path), **part._asdict()}))
                answer = self._received(connection)
                place = slice(job.first_rows[part.row_group] + part.start, job.first_rows[part.row_group] + part.stop)
                job.scores[:, place] = np.frombuffer(answer, np.float32).reshape(self.scorers, -1)
                job.done.put(place.stop - place.start)
        except BaseException:
            job.ended.set()
            job.done.put(None)
            raise
        finally:
            self._idle.put(connection)

    def _request(self, connection: Connection, request: str) -> None:
        try:
            connection.send_bytes(request.encode())
        except OSError as error:
            raise self._ended() from error
        self._answer(connection)

    def _received(self, connection: Connection) -> bytes:
        try:
            return connection.recv_bytes()
        except (EOFError, OSError) as error:
            raise self._ended() from error

    def _answer(self, connection: Connection) -> None:
        answer = json.loads(self._received(connection))
        if answer.get("errno") is not None:
            raise OSError(answer["errno"], answer["error"])
        if answer:
            raise ScoringError(f"{answer['kind']}: {answer['error']}")

    def _ended(self) -> ScoringProcessError:
        return ScoringProcessError(
            "a scoring process ended before it answered: if the machine is short of memory, "
            "lower engine.score_processes"
        )

    def close(self) -> None:
        """End the processes; what is still being scored fails."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self.server.stdin is not None:
            self.server.stdin.close()
        self.server.wait()
        self._threads.shutdown()
        for connection in self._connections:
            connection.close()


_running: dict[str, ScoringProcesses] = {}
_lock = threading.Lock()


def score_file(
    workspace: Workspace,
    models: list[QualityModel],
    path: Path,
    processes: int,
    *,
    part: tuple[float, float] = (0.0, 0.0),
) -> NDArray[np.float32]:
    """Return the scores of a Parquet file's `text` column, (models, rows), by workers kept for the next file.

    `part` says what part of the caller's work this is, as `fineweb_mask.models.runtime.progress.track` takes it.

    Raises
    ------
    ScoringError
        If a model cannot be loaded or a scorer fails.
    OSError
        If the file cannot be read, or the processes ended (`ScoringProcessError`).
    """
    placed = [model.model_copy(update={"path": str(workspace.root / model.path)}) for model in models]
    name = json.dumps([processes, [model.model_dump(mode="json") for model in placed]])
    with _lock:
        if name not in _running:
            _running[name] = ScoringProcesses(placed, processes)
        running = _running[name]
    try:
        return running.score(path, part)
    except ScoringProcessError:
        with _lock:
            if _running.get(name) is running:
                del _running[name]
        running.close()
        raise


def score_texts(
    workspace: Workspace, models: list[QualityModel], texts: list[str], processes: int
) -> NDArray[np.float32]:
    """Return the scores of texts, (models, n), by way of a file that the workers of `score_file` read."""
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
