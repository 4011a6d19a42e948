"""Find and load the models of the scorers, and compute scores with them, fastText's in several processes.

A process runs `python -m fineweb_mask.tasks.inference.scorers MODEL`. MODEL is a `QualityModel` in JSON, which is
loaded once and shared by the forks. A message is a serialised Arrow batch of texts; its answer is `+` and their scores
as float32, or `!` and an error.
"""

import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from fineweb_mask.models.columns import label
from fineweb_mask.models.errors import ModelError
from fineweb_mask.models.quality.column import ColumnValueError, NumberScorer
from fineweb_mask.models.quality.fasttext import FastTextFormatError, check_fasttext_file
from fineweb_mask.models.quality.registry import Scorer, load_scorer
from fineweb_mask.models.settings.quality import (
    FastTextScorerSettings,
    NumberSettings,
    ScorerSettings,
    SidecarScorerSettings,
    TransformerSettings,
)
from fineweb_mask.tasks.inference.model_files import ModelNotFoundError, model_file, model_folder
from fineweb_mask.tasks.processes.workers import WorkerProcessError, cores, running_workers, serve
from fineweb_mask.tasks.source.sidecars import Sidecar, read_sidecar
from fineweb_mask.tasks.storage.parquet import read_table
from fineweb_mask.tasks.workspace.job import BadShardError
from fineweb_mask.tasks.workspace.references import StageFile, digest, file_digest
from fineweb_mask.tasks.workspace.workspace import Workspace

LOADED = 16  # models that stay loaded
TRANSFORMER = ("config.json", "tokenizer.json", "*.safetensors")
"""Files of a transformer."""
_loading = threading.Lock()

ROWS_WORTH_PROCESSES = 20_000
"""With fewer rows, starting the workers takes about as long as they save."""
FORKED_ROWS = 500
"""Most documents that a process scores at a time: they stay in its cache."""
SHARE = 4
"""Parts, for each process, that the documents are scored in: none waits long for the last."""
SCORES, ERROR = b"+", b"!"
TEXTS = pa.schema([pa.field("text", pa.large_string())])


class QualityModel(BaseModel):
    """A scorer and the file or folder of its model, if it has one."""

    model_config = ConfigDict(frozen=True)

    settings: ScorerSettings
    path: str  # relative to the workspace if the model was trained there; empty without a model
    fingerprint: str  # of the model's content

    @property
    def identity(self) -> str:
        """Digest of everything that a score depends on except the document."""
        return digest([self.settings.model_dump(exclude=set(self.settings.NOT_IN_SCORE_KEY)), self.fingerprint])


def resolve_model(settings: ScorerSettings, place: int = 0) -> QualityModel:
    """Return the model that a scorer names by path or address on the hub, downloading it if necessary.

    `place` is the scorer's in `quality.scorers`, for errors.

    Raises
    ------
    ModelNotFoundError
        If the file or folder does not exist or is no such model, cannot be downloaded, or has not the checksum of the
        hub.
    """
    setting = f"quality.scorers.{place}.model"
    if isinstance(settings, NumberSettings):
        return QualityModel(settings=settings, path="", fingerprint="")
    if isinstance(settings, TransformerSettings):
        folder = model_folder(settings.model, setting, TRANSFORMER, "a transformers model")
        return QualityModel(settings=settings, path=folder.path, fingerprint=folder.fingerprint)
    path = model_file(settings.model or "", setting)
    try:
        check_fasttext_file(str(path))
    except FastTextFormatError as error:
        raise ModelNotFoundError(f"{setting}: {error}") from error
    return QualityModel(settings=settings, path=str(path), fingerprint=file_digest(path))


def load_models(workspace: Workspace, models: Sequence[QualityModel], processes: int = 1) -> dict[str, Scorer]:
    """Return the scorers by name, those of `load_sidecars` aside; each is loaded once per process.

    With several `processes`, those of fastText score in so many.
    """
    found = dict[str, Scorer]()
    for model in models:
        local = model.model_copy(update={"path": str(workspace.local(model.path))})
        if processes > 1 and isinstance(model.settings, FastTextScorerSettings):
            found[model.settings.name] = ForkedScorer(local, processes)
        elif not isinstance(model.settings, SidecarScorerSettings):
            with _loading:
                found[model.settings.name] = _load(local)
    return found


@lru_cache(maxsize=LOADED)
def _load(model: QualityModel) -> Scorer:
    return load_scorer(model.settings, model.path)


def load_sidecars(
    workspace: Workspace, documents: StageFile, models: Sequence[QualityModel], sidecars: Mapping[str, Sidecar]
) -> tuple[dict[str, Scorer], dict[str, Any]]:
    """Return the scorers of one shard that read a sidecar of its source file, by name, and details of its scores.

    Raises
    ------
    BadShardError
        If a sidecar is not there, cannot be read, or does not belong to the source file.
    """
    named = [model.settings for model in models if isinstance(model.settings, SidecarScorerSettings)]
    if not named:
        return {}, {}
    table, rows = read_table(workspace.resolve(documents), columns=["source_row", "id"]), documents.details["rows_in"]
    found, joined = dict[str, Scorer](), dict[str, Any]()
    for one in named:
        annotations, joined[one.name] = read_sidecar(sidecars[one.name], one, table, int(rows))
        found[one.name] = NumberScorer(one, annotations)
    return found, {"sidecars": joined}


def columns_read(scorers: Iterable[Scorer], documents: pa.Schema, shard: str, *, by: str | None = None) -> list[str]:
    """Return the columns of the documents that the scorers read, after `row`.

    `by` names the column that scores are standardised by, which documents may lack: it is then "" in all of them.
    One that a scorer with `missing` reads is null where they lack it.

    Raises
    ------
    BadShardError
        If the shard lacks another one.
    """
    present = set(documents.names)
    wanted = present.intersection(() if by is None else (by,))
    for scorer in scorers:
        lacking = sorted(set(scorer.columns) - present)
        if lacking and not (isinstance(scorer, NumberScorer) and scorer.settings.missing is not None):
            raise BadShardError(
                f"{shard}: no column {lacking[0]!r} to take a score from: add it to the source, set the scorer's "
                "column to another, or set `missing` to the score of documents without one"
            )
        wanted |= present.intersection(scorer.columns)
    return ["row", *sorted(wanted)]


def groups_of(documents: pa.RecordBatch | pa.Table, by: str) -> list[str]:
    """Return the values of a column of n documents as texts; null, or a column that they lack, is ""."""
    return list(map(label, _values(documents, by)))


def batch_scores(
    scorers: Mapping[str, Scorer], documents: pa.RecordBatch | pa.Table, shard: str
) -> dict[str, NDArray[np.float32]]:
    """Return every scorer's scores (n,) of n documents of a shard.

    Raises
    ------
    BadShardError
        If a scorer's column holds a value that is not a score.
    """
    read = {column for scorer in scorers.values() for column in scorer.columns}
    columns, scores = {column: _values(documents, column) for column in read}, {}
    for name, scorer in scorers.items():
        try:
            scores[name] = scorer.score(*(columns[column] for column in scorer.columns))
        except ColumnValueError as error:
            raise BadShardError(f"{shard}, row {documents['row'][error.position]}: {error}") from error
    return scores


def _values(documents: pa.RecordBatch | pa.Table, column: str) -> list[Any]:
    """Return the values (n,) of a column of n documents, null where they lack it."""
    return documents[column].to_pylist() if column in documents.schema.names else [None] * documents.num_rows


def useful_processes(rows: int) -> int:
    """Return how many processes to score `rows` documents with: one for each core, if they are worth it."""
    return 1 if rows < ROWS_WORTH_PROCESSES else cores()


class ForkedScorer:
    """Score texts with a fastText model in so many processes, which share it and are kept for the next file."""

    columns: tuple[str, ...] = ("text",)

    def __init__(self, model: QualityModel, processes: int) -> None:
        self._model, self._processes = model.model_dump_json(), processes

    def score(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the score of each text, (n,).

        Raises
        ------
        ModelError
            If the model cannot be loaded or the scorer fails.
        WorkerProcessError
            If a process ended.
        StoppedError
            If a stop was requested.
        """
        pool = running_workers(__name__, self._model, self._processes)
        rows = min(FORKED_ROWS, 1 + len(texts) // (SHARE * self._processes))

        def scored(start: int) -> NDArray[np.float32]:
            part = pa.record_batch([pa.array(texts[start : start + rows], pa.large_string())], schema=TEXTS)
            answer = pool.ask(memoryview(part.serialize()))
            if not isinstance(answer, bytes):
                raise WorkerProcessError(
                    "a scoring process ended before it answered: if the machine is short of memory, give it fewer "
                    "cores (`taskset`, or those of a container), each of which holds the model"
                )
            if answer[:1] != SCORES:
                raise ModelError(answer[1:].decode())
            return np.frombuffer(answer[1:], np.float32)

        return np.concatenate([np.empty(0, np.float32), *pool.map(scored, range(0, len(texts), rows))])


def _scoring(model: QualityModel) -> Callable[[bytes], bytes]:
    """Return the function that answers texts with their scores, or with the error, also of loading the model."""

    def answer(message: bytes) -> bytes:
        try:
            texts = pa.ipc.read_record_batch(memoryview(message), TEXTS)["text"].to_pylist()
            return SCORES + loaded.score(texts).tobytes()
        except Exception as error:  # noqa: BLE001 - the client raises it
            return _described(error)

    try:
        loaded = load_scorer(model.settings, model.path)
    except Exception as error:  # noqa: BLE001 - the client raises it
        failed = _described(error)
        return lambda _: failed
    return answer


def _described(error: Exception) -> bytes:
    return ERROR + f"{type(error).__name__}: {error}".encode()


if __name__ == "__main__":
    serve(_scoring(QualityModel.model_validate_json(sys.argv[1])))
