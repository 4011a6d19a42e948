"""Score texts in several processes that share one copy of the models.

A process runs `python -m fineweb_mask.tasks.inference.scoring_pool MODELS SOCKET...`. MODELS is a JSON list of models,
each SOCKET an inherited file descriptor. The models are loaded once, and shared by a fork for each socket. A message is
a serialised Arrow batch of texts; its answer is `+` and the scores (scorers, rows) as float32, or `!` and an error.
"""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fineweb_mask.models.errors import ModelError
from fineweb_mask.models.quality.registry import load_scorer
from fineweb_mask.tasks.inference.scorers import QualityModel
from fineweb_mask.tasks.processes.worker import serve
from fineweb_mask.tasks.processes.workers import WorkerProcessError, cores, running_workers
from fineweb_mask.tasks.workspace.workspace import Workspace

FORKED_KINDS = frozenset({"fasttext"})
"""Kinds of scorers that read an Arrow column, compute on one thread and survive a fork: they do not use a GPU."""

ROWS_WORTH_PROCESSES = 20_000
"""With fewer rows, starting the workers takes about as long as they save."""

POOL_ROWS = 500
"""Documents that a process scores at a time, if no other scorer needs larger batches: they stay in its cache."""

AHEAD = 2
"""Batches per process that are read before the first has its scores."""

SCORES, ERROR = b"+", b"!"
TEXTS = pa.schema([pa.field("text", pa.large_string())])

ENDED = "a scoring process ended before it answered: if the machine is short of memory, lower engine.score_processes"


class ScoringError(ModelError):
    """A scorer failed, or its model cannot be loaded."""


def useful_processes(rows: int, wanted: int | None) -> int:
    """Return how many processes to score `rows` documents with; `wanted` None means all available cores."""
    return 1 if rows < ROWS_WORTH_PROCESSES else wanted or cores()


def pooled_models(models: Sequence[QualityModel], processes: int) -> list[QualityModel]:
    """Return the models that score in worker processes: none if `processes` is 1."""
    return [model for model in models if processes > 1 and model.settings.kind in FORKED_KINDS]


def score_batches(
    workspace: Workspace, models: Sequence[QualityModel], processes: int, batches: Iterable[pa.RecordBatch]
) -> Iterator[tuple[pa.RecordBatch, dict[str, NDArray[np.float32]]]]:
    """Yield batches in their order with the scores of their `text` column, (n,), by the model's name.

    The processes are kept for the next file. Without `models` there are no scores.

    Parameters
    ----------
    workspace
        The workspace that models may be in.
    models
        Of kinds in `FORKED_KINDS`, see `pooled_models`.
    processes
        How many score.
    batches
        Documents.

    Raises
    ------
    ScoringError
        If a model cannot be loaded or a scorer fails.
    WorkerProcessError
        If a process ended.
    StoppedError
        If a stop was requested.
    """
    if not models:
        yield from ((batch, {}) for batch in batches)
        return
    placed = [model.model_copy(update={"path": str(workspace.local(model.path))}) for model in models]
    work = json.dumps([model.model_dump(mode="json") for model in placed])
    pool = running_workers(__name__, work, processes, is_forked=True)
    names = [model.settings.name for model in models]

    def scored(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[str, NDArray[np.float32]]]:
        answer = pool.ask(memoryview(batch.select(["text"]).cast(TEXTS).serialize()))
        if not isinstance(answer, bytes):
            pool.close(ENDED)
            raise WorkerProcessError(ENDED)
        if answer[:1] != SCORES:
            raise ScoringError(answer[1:].decode())
        return batch, dict(zip(names, np.frombuffer(answer[1:], np.float32).reshape(len(names), -1), strict=True))

    yield from pool.map(scored, batches, ahead=AHEAD)


def _scoring(models: str) -> Callable[[bytes], bytes]:
    """Return the function that answers texts with their scores; where no model can be loaded, with the error."""
    try:
        loaded = [QualityModel.model_validate(model) for model in json.loads(models)]
        scorers = [load_scorer(model.settings, model.path) for model in loaded]
    except Exception as error:  # noqa: BLE001 - the client raises it
        described = _described(error)
        return lambda _: described

    def answer(message: bytes) -> bytes:
        try:
            texts = pa.ipc.read_record_batch(message, TEXTS)["text"]
            return SCORES + np.stack([scorer.score(texts) for scorer in scorers]).astype(np.float32).tobytes()
        except Exception as error:  # noqa: BLE001 - the client raises it
            return _described(error)

    return answer


def _described(error: Exception) -> bytes:
    return ERROR + f"{type(error).__name__}: {error}".encode()


if __name__ == "__main__":
    serve(_scoring(sys.argv[1]), [int(socket) for socket in sys.argv[2:]])
