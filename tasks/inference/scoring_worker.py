"""The far side of `scoring_pool.py`: `python -m` this module loads the models once, then forks the workers.

A worker reads its rows from the Parquet file and sends back their scores, so that no text passes between processes,
and all of them read one copy of the models: that which was loaded before the fork. This process has one thread when it
forks. It ends, and its workers with it, when its standard input does: with the process that started it.
"""

import gc
import json
import os
import signal
import sys
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fineweb_mask.models.quality.registry import Scorer, load_scorer
from fineweb_mask.tasks.inference.scorers import QualityModel

STEP_ROWS = 500
"""Rows in a batch: requests begin at a multiple of it."""


class RowReader:
    """Reads the `text` column of a row group step by step, and goes on where the last request ended."""

    def __init__(self) -> None:
        self._place: tuple[int, int, int] | None = None  # run, row group, next row
        self._batches: Iterator[pa.RecordBatch] = iter(())

    def read(self, run: int, path: str, row_group: int, start: int, stop: int) -> Iterator[pa.Array]:
        """Yield the rows [start, stop) of a row group; `run` numbers the file that lay at `path` at that time."""
        row = start
        if self._place != (run, row_group, start):
            self._batches = _batches(path, row_group)
            row = 0
        self._place = None
        for batch in self._batches:
            first, row = row, row + batch.num_rows
            if row > start:
                yield batch["text"].slice(max(start - first, 0), stop - max(start, first))
            if row >= stop:
                break
        self._place = (run, row_group, row)


def _batches(path: str, row_group: int) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(path, pre_buffer=False) as file:  # one column of a local file: nothing to join
        yield from file.iter_batches(STEP_ROWS, row_groups=[row_group], columns=["text"], use_threads=False)


def _work(connection: Connection, scorers: list[Scorer]) -> None:
    """Answer requests until the other end is closed: JSON, and after `{}` the scores, (scorers, rows), as bytes."""
    reader = RowReader()
    while True:
        try:
            request = json.loads(connection.recv_bytes())
        except EOFError:
            return
        try:
            texts = list(reader.read(**request))
            scores = np.concatenate([[scorer.score(batch) for scorer in scorers] for batch in texts], axis=1)
        except Exception as error:  # noqa: BLE001 - told to the process that asked
            connection.send_bytes(_describe(error))
        else:
            connection.send_bytes(b"{}")
            connection.send_bytes(scores.astype(np.float32).tobytes())


def _describe(error: BaseException) -> bytes:
    answer: dict[str, Any] = {"kind": type(error).__name__, "error": str(error)}
    if isinstance(error, OSError):
        answer["errno"] = error.errno
    return json.dumps(answer).encode()


def _main(models: str, sockets: list[int]) -> None:
    connections = [Connection(socket) for socket in sockets]
    try:
        loaded = [QualityModel.model_validate(model) for model in json.loads(models)]
        scorers = [load_scorer(model.settings, model.path) for model in loaded]
    except Exception as error:  # noqa: BLE001 - told to the process that asked
        for connection in connections:
            connection.send_bytes(_describe(error))
        return
    gc.collect()
    gc.freeze()  # a later collection would write to, and so copy, the pages that the workers share
    workers = []
    for connection in connections:
        worker = os.fork()
        if worker == 0:
            for other in connections:
                if other is not connection:
                    other.close()
            sys.stdin.close()
            connection.send_bytes(b"{}")
            _work(connection, scorers)
            os._exit(0)
        workers.append(worker)
    for connection in connections:  # held by its worker alone, so that its end is seen
        connection.close()
    sys.stdin.buffer.read()
    for worker in workers:
        os.kill(worker, signal.SIGKILL)  # it writes no file
        os.waitpid(worker, 0)


if __name__ == "__main__":
    _main(sys.argv[1], [int(socket) for socket in sys.argv[2:]])
