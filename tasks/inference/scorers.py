"""Find and load the models of the scorers, and compute scores with them, in several processes where these share a copy.

A process runs `python -m fineweb_mask.tasks.inference.scorers MODELS`. MODELS is a list of `QualityModel` in JSON; all
are loaded once, and shared by the forks. A message is the place of one in the list, as a byte, and a serialised Arrow
batch of texts; its answer is `+` and their scores as float32, or `!` and an error.
"""

import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, TypeAdapter

from fineweb_mask.models.columns import label
from fineweb_mask.models.errors import ModelError
from fineweb_mask.models.quality.column import ColumnScorer, ColumnValueError, SidecarScorer
from fineweb_mask.models.quality.fasttext.scorer import FastTextFormatError, check_fasttext_file
from fineweb_mask.models.quality.registry import Scorer, load_scorer
from fineweb_mask.models.settings.quality import (
    ColumnScorerSettings,
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
FORKED_KINDS = frozenset({"fasttext"})
"""Kinds of scorers that read texts, compute on one thread and survive a fork: they do not use a GPU."""

ROWS_WORTH_PROCESSES = 20_000
"""With fewer rows, starting the workers takes about as long as they save."""

FORKED_ROWS = 500
"""Most documents that a process scores at a time: they stay in its cache."""

SHARE = 4
"""Parts, for each process, that the documents are scored in: none waits long for the last."""

SCORES, ERROR = b"+", b"!"
TEXTS = pa.schema([pa.field("text", pa.large_string())])

ENDED = (
    "a scoring process ended before it answered: if the machine is short of memory, give it fewer cores (`taskset`, "
    "or those of a container), each of which holds the model"
)


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


MODELS = TypeAdapter(list[QualityModel])


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
    if isinstance(settings, ColumnScorerSettings | SidecarScorerSettings):
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

    With several `processes`, those of `FORKED_KINDS` score in so many.
    """
    local = [model.model_copy(update={"path": str(workspace.local(model.path))}) for model in models]
    forked = [model for model in local if processes > 1 and model.settings.kind in FORKED_KINDS]
    with _loading:
        return {
            model.settings.name: ForkedScorer(forked, forked.index(model), processes)
            if model in forked
            else _load(model)
            for model in local
            if not isinstance(model.settings, SidecarScorerSettings)
        }


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
        found[one.name] = SidecarScorer(one, annotations)
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
    wanted, present = set[str](), set(documents.names)
    for scorer in scorers:
        may_lack = isinstance(scorer, ColumnScorer) and scorer.settings.missing is not None
        wanted |= present.intersection(scorer.columns) if may_lack else set(scorer.columns)
    if missing := sorted(wanted - present):
        raise BadShardError(
            f"{shard}: no column {missing[0]!r} to take a score from: add it to the source, set the scorer's column to "
            "another, or set `missing` to the score of documents without one"
        )
    grouped_by = [by] if by is not None and by in documents.names and by not in wanted else []
    return ["row", *sorted(wanted), *grouped_by]


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
    """Score texts with one of several models of `FORKED_KINDS`, in so many processes that have them all.

    They are kept for the next file.
    """

    columns: tuple[str, ...] = ("text",)

    def __init__(self, models: Sequence[QualityModel], place: int, processes: int) -> None:
        self._models, self._place, self._processes = MODELS.dump_json(list(models)).decode(), bytes([place]), processes

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
        pool = running_workers(__name__, self._models, self._processes)
        rows = min(FORKED_ROWS, 1 + len(texts) // (SHARE * self._processes))

        def scored(start: int) -> NDArray[np.float32]:
            part = pa.record_batch([pa.array(texts[start : start + rows], pa.large_string())], schema=TEXTS)
            answer = pool.ask(self._place + memoryview(part.serialize()))
            if not isinstance(answer, bytes):
                raise WorkerProcessError(ENDED)
            if answer[:1] != SCORES:
                raise ModelError(answer[1:].decode())
            return np.frombuffer(answer[1:], np.float32)

        return np.concatenate([np.empty(0, np.float32), *pool.map(scored, range(0, len(texts), rows))])


def _scoring(models: str) -> Callable[[bytes], bytes]:
    """Return the function that answers texts with their scores; of a model that cannot be loaded, with the error."""
    scorers = list[Scorer | bytes]()
    for model in MODELS.validate_json(models):
        try:
            scorers.append(load_scorer(model.settings, model.path))
        except Exception as error:  # noqa: BLE001 - the client raises it
            scorers.append(_described(error))

    def answer(message: bytes) -> bytes:
        scorer = scorers[message[0]]
        if isinstance(scorer, bytes):
            return scorer
        try:
            texts = pa.ipc.read_record_batch(memoryview(message)[1:], TEXTS)["text"].to_pylist()
            return SCORES + scorer.score(texts).tobytes()
        except Exception as error:  # noqa: BLE001 - the client raises it
            return _described(error)

    return answer


def _described(error: Exception) -> bytes:
    return ERROR + f"{type(error).__name__}: {error}".encode()


if __name__ == "__main__":
    serve(_scoring(sys.argv[1]))
