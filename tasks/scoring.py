"""Scores one shard on several cores: the official fastText package holds Python's lock, so threads gain nothing.

A clean process of its own loads the models and forks the workers (`tasks/scoring_worker.py`): a fork of this one, with
its threads, could hang. Workers are kept from shard to shard. One that dies takes the rest with it and the error is one
that is tried again, with new workers.
"""

import atexit
import json
import math
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tasks.lake import Workspace
from tasks.quality_models import QualityModel

FORKED_KINDS = frozenset({"fasttext"})
"""Scorers that read an Arrow column, compute on one thread and hold nothing that a fork breaks, such as a GPU."""

ROWS_WORTH_PROCESSES = 20_000
"""Below this, starting the workers takes about as long as what they would save."""

ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",  # jemalloc inside Arrow
}
"""Environment in which numpy and Arrow start no thread, for a fork must copy all of a process."""

ROOT = Path(__file__).resolve().parents[1]


class ScoringProcessError(ConnectionError):
    """The scoring processes ended before they answered; trying again may help."""


class ScoringError(RuntimeError):
    """A scorer failed."""


class Part(NamedTuple):
    """Rows [start, stop) of one row group."""

    row_group: int
    start: int
    stop: int


def useful_processes(rows: int, wanted: int | None) -> int:
    """Return how many processes to score `rows` documents with; None wants every core that may be used."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return 1 if rows < ROWS_WORTH_PROCESSES else wanted or cores


def parts_of(path: Path, processes: int) -> list[Part]:
    """Return the row groups of a file, cut where they are too few to keep all processes busy."""
    with pq.ParquetFile(path) as file:
        groups = [file.metadata.row_group(index).num_rows for index in range(file.num_row_groups)]
    largest = max(1, math.ceil(sum(groups) / (2 * processes)))
    return [
        Part(index, int(start), int(stop))
        for index, rows in enumerate(groups)
        for edges in [np.linspace(0, rows, math.ceil(rows / largest) + 1).astype(int)]
        for start, stop in pairwise(edges)
    ]


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
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.server = subprocess.Popen(  # noqa: S603 - this interpreter, a module of this package
            [sys.executable, "-m", "tasks.scoring_worker", described, *map(str, sockets)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=sockets,
            env={**os.environ, **ONE_THREAD, "PYTHONPATH": path},
            start_new_session=True,  # an interrupt from the terminal is ours to handle
        )
        self._connections = [Connection(ours.detach()) for ours, _ in pairs]
        for _, theirs in pairs:
            theirs.close()
        self._idle: SimpleQueue[Connection] = SimpleQueue()
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

    def score(self, path: Path) -> Iterator[NDArray[np.float32]]:
        """Yield the scores of the `text` column of a Parquet file in order, (scorers, rows) at a time.

        Raises
        ------
        ScoringError
            If a scorer fails.
        OSError
            If the file cannot be read, or the processes ended (`ScoringProcessError`).
        """
        pending: list[Future[NDArray[np.float32]]] = []
        try:
            pending = [self._threads.submit(self._ask, path, part) for part in parts_of(path, self.processes)]
            for future in pending:
                yield future.result()
        except ScoringError:
            raise
        except (CancelledError, RuntimeError) as error:  # how a closed executor answers
            raise ScoringProcessError("the scoring processes were closed") from error
        finally:
            for future in pending:
                future.cancel()

    def _ask(self, path: Path, part: Part) -> NDArray[np.float32]:
        connection = self._idle.get()
        try:
            try:
                connection.send_bytes(json.dumps({"path": str(path), **part._asdict()}).encode())
            except OSError as error:
                raise self._ended() from error
            self._answer(connection)
            try:
                return np.frombuffer(connection.recv_bytes(), np.float32).reshape(self.scorers, -1)
            except (EOFError, OSError) as error:
                raise self._ended() from error
        finally:
            self._idle.put(connection)

    def _answer(self, connection: Connection) -> None:
        try:
            answer = json.loads(connection.recv_bytes())
        except (EOFError, OSError) as error:
            raise self._ended() from error
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


class ScoreStream:
    """The columns that workers fill, read a few rows at a time.

    Parameters
    ----------
    names
        Name of every scorer, in the order of `blocks`.
    blocks
        Consecutive scores, (scorers, rows) each.
    """

    def __init__(self, names: list[str], blocks: Iterator[NDArray[np.float32]]) -> None:
        self._names = names
        self._blocks = blocks
        self._block = np.empty((len(names), 0), dtype=np.float32)

    def take(self, rows: int) -> dict[str, NDArray[np.float32]]:
        """Return the next rows of every column, (rows,)."""
        pieces = [self._block[:, :0]]
        while rows > 0:
            if self._block.shape[1] == 0:
                self._block = next(self._blocks)
            pieces.append(self._block[:, :rows])
            self._block = self._block[:, rows:]
            rows -= pieces[-1].shape[1]
        return dict(zip(self._names, np.concatenate(pieces, axis=1), strict=True))


_running: dict[str, ScoringProcesses] = {}
_lock = threading.Lock()


def score_file(
    workspace: Workspace, models: list[QualityModel], path: Path, processes: int
) -> Iterator[NDArray[np.float32]]:
    """Yield the scores of a Parquet file's `text` column, (models, rows) at a time, from workers kept for the next.

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
        yield from running.score(path)
    except ScoringProcessError:
        with _lock:
            if _running.get(name) is running:
                del _running[name]
                running.close()
        raise


def end_scoring_processes() -> None:
    """End all workers; the next call of `score_file` starts new ones."""
    with _lock:
        while _running:
            _running.popitem()[1].close()


atexit.register(end_scoring_processes)
