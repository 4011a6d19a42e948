"""Find and load the models of the scorers, and compute scores with them, in several processes where these share a copy.

A process runs `python -m fineweb_mask.tasks.inference.scorers MODEL SOCKET...`. MODEL is a `QualityModel` in JSON, each
SOCKET an inherited file descriptor. The model is loaded once, and shared by a fork for each socket. A message is a
serialised Arrow batch of texts; its answer is `+` and their scores as float32, or `!` and an error.
"""

import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from fineweb_mask.models.columns import label
from fineweb_mask.models.errors import ModelError
from fineweb_mask.models.quality.column import ColumnScorer, ColumnValueError, SidecarScorer
from fineweb_mask.models.quality.fasttext.scorer import FastTextFormatError, check_fasttext_file
from fineweb_mask.models.quality.registry import Scorer, load_scorer
from fineweb_mask.models.settings.quality import (
    ColumnScorerSettings,
    FastTextScorerSettings,
    ScorerSettings,
    SidecarScorerSettings,
    TransformerSettings,
)
from fineweb_mask.models.urls import HUB
from fineweb_mask.tasks.inference.model_files import (
    ModelNotFoundError,
    check_download,
    check_model_file,
    check_model_folder,
    model_file,
    model_folder,
)
from fineweb_mask.tasks.processes.workers import WorkerProcessError, cores, running_workers, serve
from fineweb_mask.tasks.source.labels import LabelsError, check_labels
from fineweb_mask.tasks.source.sidecars import Sidecar, read_sidecar
from fineweb_mask.tasks.storage.parquet import read_table
from fineweb_mask.tasks.workspace.job import BadShardError
from fineweb_mask.tasks.workspace.references import StageFile, digest, file_digest
from fineweb_mask.tasks.workspace.workspace import Workspace

LOADED = 16  # models that stay loaded
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
    "a scoring process ended before it answered: if the machine is short of memory, lower "
    "engine.resources.score.num_cpus"
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


def check_scorers(scorers: Sequence[ScorerSettings]) -> None:
    """Check that every scorer's model or labels exist, before any work starts; nothing is downloaded.

    Raises
    ------
    ModelNotFoundError
        If a file or one of its columns is missing, a file is no fastText model, or an address on the hub is malformed.
    """
    for index, scorer in enumerate(scorers):
        where = f"quality.scorers.{index}"
        if isinstance(scorer, TransformerSettings):
            check_folder(scorer.model, where)
        elif isinstance(scorer, FastTextScorerSettings) and scorer.model is not None:
            check_model_file(scorer.model, f"{where}.model")
            if not scorer.model.startswith(HUB):
                try:
                    check_fasttext_file(scorer.model)
                except FastTextFormatError as error:
                    raise ModelNotFoundError(f"{where}.model: {error}") from error
        elif isinstance(scorer, FastTextScorerSettings) and scorer.labels is not None:
            try:
                check_labels(scorer.labels)
            except LabelsError as error:
                raise ModelNotFoundError(f"{where}.labels: {error}") from error


def check_folder(model: str, where: str) -> None:
    """Check that a transformer's folder holds what it needs; whether the hub has one is found when it is fetched.

    Raises
    ------
    ModelNotFoundError
        If a file is missing.
    """
    check_model_folder(model, f"{where}.model")
    folder = Path(model)
    if folder.is_dir():
        for pattern in ("config.json", "tokenizer.json", "*.safetensors"):
            if not any(folder.glob(pattern)):
                raise ModelNotFoundError(f"{where}.model: the folder {model!r} must hold {pattern}")


def resolve_model(settings: ScorerSettings) -> QualityModel:
    """Return the model that a scorer names by path or address on the hub, downloading it if necessary.

    Raises
    ------
    ModelNotFoundError
        If the file or folder does not exist, cannot be downloaded, or has not the checksum of the hub.
    """
    if isinstance(settings, ColumnScorerSettings | SidecarScorerSettings):
        return QualityModel(settings=settings, path="", fingerprint="")
    setting = f"scorer {settings.name!r}, model"
    if isinstance(settings, TransformerSettings):
        folder = model_folder(settings.model, setting)
        return QualityModel(settings=settings, path=folder.path, fingerprint=folder.fingerprint)
    model = settings.model or ""
    path = model_file(model, setting)
    fingerprint = file_digest(path)
    if model.startswith(HUB):
        check_download(path, fingerprint, setting)
    return QualityModel(settings=settings, path=str(path), fingerprint=fingerprint)


def load_models(workspace: Workspace, models: Sequence[QualityModel], processes: int = 1) -> dict[str, Scorer]:
    """Return the scorers by name, those of `load_sidecars` aside; each is loaded once per process.

    With several `processes`, those of `FORKED_KINDS` score in so many.
    """
    with _loading:
        return {
            model.settings.name: _load(model.model_copy(update={"path": str(workspace.local(model.path))}), processes)
            for model in models
            if not isinstance(model.settings, SidecarScorerSettings)
        }


@lru_cache(maxsize=LOADED)
def _load(model: QualityModel, processes: int) -> Scorer:
    if processes > 1 and model.settings.kind in FORKED_KINDS:
        return ForkedScorer(model, processes)
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


def groups_of(batch: pa.RecordBatch, by: str) -> list[str]:
    """Return the values of a column of n documents as texts; null, or a column that they lack, is ""."""
    return list(map(label, values_of(batch, by)))


def score_columns(
    scorers: Mapping[str, Scorer], columns: Mapping[str, Sequence[Any]], place: Callable[[int], str]
) -> dict[str, NDArray[np.float32]]:
    """Return every scorer's scores (n,) of n documents; `place` names the shard and row of a position, for errors.

    Raises
    ------
    BadShardError
        If a scorer's column holds a value that is not a score.
    """
    scores = {}
    for name, scorer in scorers.items():
        try:
            scores[name] = scorer.score(*(columns[column] for column in scorer.columns))
        except ColumnValueError as error:
            raise BadShardError(f"{place(error.position)}: {error}") from error
    return scores


def batch_scores(scorers: Mapping[str, Scorer], batch: pa.RecordBatch, shard: str) -> dict[str, NDArray[np.float32]]:
    """Return every scorer's scores (n,) of a batch of n documents of a shard; see `score_columns`."""
    read = {column for scorer in scorers.values() for column in scorer.columns}
    columns = {column: values_of(batch, column) for column in read}
    return score_columns(scorers, columns, lambda position: f"{shard}, row {batch['row'][position]}")


def values_of(batch: pa.RecordBatch, column: str) -> list[Any]:
    """Return the values (n,) of a column of n documents, null where they lack it."""
    return batch[column].to_pylist() if column in batch.schema.names else [None] * batch.num_rows


def useful_processes(rows: int, wanted: int | None) -> int:
    """Return how many processes to score `rows` documents with; `wanted` None means all available cores."""
    return 1 if rows < ROWS_WORTH_PROCESSES else wanted or cores()


class ForkedScorer:
    """Score texts with a model of one of `FORKED_KINDS` in so many processes, which are kept for the next file."""

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
        pool = running_workers(__name__, self._model, self._processes, is_forked=True)
        rows = min(FORKED_ROWS, 1 + len(texts) // (SHARE * self._processes))

        def scored(start: int) -> NDArray[np.float32]:
            part = pa.record_batch([pa.array(texts[start : start + rows], pa.large_string())], schema=TEXTS)
            answer = pool.ask(memoryview(part.serialize()))
            if not isinstance(answer, bytes):
                pool.close(ENDED)
                raise WorkerProcessError(ENDED)
            if answer[:1] != SCORES:
                raise ModelError(answer[1:].decode())
            return np.frombuffer(answer[1:], np.float32)

        return np.concatenate([np.empty(0, np.float32), *pool.map(scored, range(0, len(texts), rows))])


def _scoring(model: str) -> Callable[[bytes], bytes]:
    """Return the function that answers texts with their scores; where the model cannot be loaded, with the error."""
    try:
        loaded = QualityModel.model_validate_json(model)
        scorer = load_scorer(loaded.settings, loaded.path)
    except Exception as error:  # noqa: BLE001 - the client raises it
        described = _described(error)
        return lambda _: described

    def answer(message: bytes) -> bytes:
        try:
            return SCORES + scorer.score(pa.ipc.read_record_batch(message, TEXTS)["text"].to_pylist()).tobytes()
        except Exception as error:  # noqa: BLE001 - the client raises it
            return _described(error)

    return answer


def _described(error: Exception) -> bytes:
    return ERROR + f"{type(error).__name__}: {error}".encode()


if __name__ == "__main__":
    serve(_scoring(sys.argv[1]), [int(socket) for socket in sys.argv[2:]])
