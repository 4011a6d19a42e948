"""Score Parquet row ranges in worker processes that share one copy of the models; run with `python -m`.

Usage: `python -m fineweb_mask.tasks.inference.scoring_worker MODELS SOCKET...`, where MODELS is a JSON list of
`QualityModel` and each SOCKET is an inherited file descriptor. The process loads the models and forks one worker per
socket. It has a single thread when it forks. A worker reads its rows from the Parquet file and returns only the scores,
so no text is copied between processes. If standard input closes or a worker ends, all of them end.
"""

import gc
import json
import multiprocessing
import sys
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, wait

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fineweb_mask.models.quality.registry import Scorer, load_scorer
from fineweb_mask.tasks.inference.scorers import QualityModel
from fineweb_mask.tasks.storage.parquet import DamagedFileError, VerifiedFile

STEP_ROWS = 500
"""Rows per batch. The first row of a request is a multiple of it."""

Answer = NDArray[np.float32] | OSError | str
"""Scores (scorers, rows), or an error. The first answer has no rows: the models are loaded."""


class RowReader:
    """Read the `text` column of a row group, continuing where the previous request ended."""

    def __init__(self) -> None:
        self._next: tuple[int, int, int] | None = None  # run, row group, row
        self._batches: Iterator[pa.RecordBatch] = iter(())

    def read(self, run: int, path: str, row_group: int, start: int, stop: int) -> Iterator[pa.Array]:
        """Yield the texts of the rows [start, stop) of a row group, in batches.

        The number `run` identifies the file, because another file may replace it at the same path.
        """
        if self._next != (run, row_group, start):
            self._batches = _batches(path, row_group)
            for _ in self._take(start):  # a row can only be reached by decoding all rows before it
                pass
        self._next = None  # if reading fails, the next request starts from the first row
        yield from self._take(stop - start)
        self._next = (run, row_group, stop)

    def _take(self, rows: int) -> Iterator[pa.Array]:
        while rows > 0:
            batch = next(self._batches)
            rows -= batch.num_rows
            yield batch["text"]


def _batches(path: str, row_group: int) -> Iterator[pa.RecordBatch]:
    with VerifiedFile(path, pre_buffer=False) as file:  # pre-buffering joins reads of several columns
        yield from file.iter_batches(STEP_ROWS, row_groups=[row_group], columns=["text"], use_threads=False)


def _work(connection: Connection, scorers: list[Scorer]) -> None:
    """Answer requests until the client disconnects."""
    reader = RowReader()
    with suppress(EOFError, ConnectionError):
        while True:
            request = connection.recv()
            try:
                scores = [[scorer.score(texts) for scorer in scorers] for texts in reader.read(*request)]
                answer: Answer = np.concatenate(scores, axis=1, dtype=np.float32)
            except Exception as error:  # noqa: BLE001 - the client raises it
                answer = _described(error)
            connection.send(answer)


def _described(error: Exception) -> OSError | str:
    """Return what to send: damage of a file, an error of the system with its number for a retry, any other as text."""
    if isinstance(error, DamagedFileError):
        return error
    if isinstance(error, OSError) and error.errno is not None:
        return OSError(error.errno, error.strerror, error.filename)  # picklable for every subclass
    return f"{type(error).__name__}: {error}"


def _main(models: str, sockets: list[int]) -> None:
    connections = [Connection(socket) for socket in sockets]
    try:
        loaded = [QualityModel.model_validate(model) for model in json.loads(models)]
        scorers = [load_scorer(model.settings, model.path) for model in loaded]
    except Exception as error:  # noqa: BLE001 - the client raises it
        connections[0].send(_described(error))
        return
    gc.collect()
    gc.freeze()  # a later collection would write to the shared memory pages and so copy them
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_work, args=(connection, scorers), daemon=True) for connection in connections]
    for worker in workers:
        worker.start()
    connections[0].send(np.empty((len(scorers), 0), np.float32))
    wait([sys.stdin.fileno(), *(worker.sentinel for worker in workers)])  # multiprocessing ends daemons at exit


if __name__ == "__main__":
    _main(sys.argv[1], [int(socket) for socket in sys.argv[2:]])
