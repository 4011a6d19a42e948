"""The far side of `tasks/scoring.py`: `python -m` this module loads the models once, then forks the workers.

A worker reads its rows from the Parquet file and sends back their scores, so that no text passes between processes,
and all of them read one copy of the models: that which was loaded before the fork. This process has one thread when it
forks. It ends, and its workers with it, when its standard input does: with the process that started it.
"""

import gc
import json
import os
import signal
import sys
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from models.quality.scorer import Scorer, load_scorer
from tasks.quality_models import QualityModel

BATCH_ROWS = 1_000


def score_rows(scorers: list[Scorer], path: str, row_group: int, start: int, stop: int) -> NDArray[np.float32]:
    """Return the scores of the rows [start, stop) of a row group, (scorers, stop - start)."""
    scores = np.empty((len(scorers), stop - start), dtype=np.float32)
    row = 0
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(BATCH_ROWS, row_groups=[row_group], columns=["text"], use_threads=False):
            texts = batch["text"].slice(max(start - row, 0), max(stop - max(row, start), 0))
            if len(texts):
                done = max(row, start) - start
                for index, scorer in enumerate(scorers):
                    scores[index, done : done + len(texts)] = scorer.score(texts)
            row += batch.num_rows
            if row >= stop:
                break
    return scores


def _work(connection: Connection, scorers: list[Scorer]) -> None:
    """Answer requests until the other end is closed: JSON, and after `{}` the scores as bytes."""
    while True:
        try:
            request = json.loads(connection.recv_bytes())
        except EOFError:
            return
        try:
            scores = score_rows(scorers, **request)
        except Exception as error:  # noqa: BLE001 - told to the process that asked
            connection.send_bytes(_describe(error))
        else:
            connection.send_bytes(b"{}")
            connection.send_bytes(scores.tobytes())


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
