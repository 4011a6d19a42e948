"""Find and load the models of the scorers, and compute scores with them, in several processes where these share a copy.

A process runs `python -m fineweb_mask.tasks.inference.scorers MODELS SOCKET...`. MODELS is a JSON list of models, each
SOCKET an inherited file descriptor. The models are loaded once, and shared by a fork for each socket. A message is a
serialised Arrow batch of texts; its answer is `+` and the scores (scorers, rows) as float32, or `!` and an error.
"""

import json
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from fineweb_mask.models.columns import label
from fineweb_mask.models.errors import ModelError
from fineweb_mask.models.quality.column import ColumnValueError, SidecarScorer
from fineweb_mask.models.quality.fasttext.scorer import FastTextFormatError, check_fasttext_file
from fineweb_mask.models.quality.registry import Scorer, columns_of, load_scorer
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
"""Kinds of scorers that read an Arrow column, compute on one thread and survive a fork: they do not use a GPU."""

ROWS_WORTH_PROCESSES = 20_000
"""With fewer rows, starting the workers takes about as long as they save."""

POOL_ROWS = 500
"""Documents that a process scores at a time, if no other scorer needs larger batches: they stay in its cache."""

AHEAD = 2
"""Batches per process that are read before the first has its scores."""

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


def load_models(workspace: Workspace, models: list[QualityModel]) -> dict[str, Scorer]:
    """Return the scorers by name, those of `load_sidecars` aside; each is loaded once per process."""
    with _loading:
        return {
            model.settings.name: _load(str(workspace.local(model.path)), model)
            for model in models
            if not isinstance(model.settings, SidecarScorerSettings)
        }


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


@lru_cache(maxsize=LOADED)
def _load(path: str, model: QualityModel) -> Scorer:
    return load_scorer(model.settings, path)


def columns_read(
    scorers: Iterable[Scorer], documents: pa.Schema, shard: str, *, with_text: bool = False, by: str | None = None
) -> list[str]:
    """Return the columns of the documents that the scorers read, after `row`; `with_text` adds `text`.

    `by` names the column that scores are standardised by, which documents may lack: it is then "" in all of them.
    One that a scorer with `missing` reads is null where they lack it.

    Raises
    ------
    BadShardError
        If the shard lacks another one.
    """
    wanted, present = {"text"} if with_text else set[str](), set(documents.names)
    for scorer in scorers:
        read = set(columns_of(scorer))
        wanted |= read & present if getattr(getattr(scorer, "settings", None), "missing", None) is not None else read
    if missing := sorted(wanted - present):
        raise BadShardError(
            f"{shard}: no column {missing[0]!r} to take a score from: add it to the source, set the scorer's column to "
            "another, or set `missing` to the score of documents without one"
        )
    grouped_by = [by] if by is not None and by in documents.names and by not in wanted else []
    return ["row", *sorted(wanted), *grouped_by]


def groups_of(batch: pa.RecordBatch, by: str) -> list[str]:
    """Return the values of a column of n documents as texts; null, or a column that they lack, is ""."""
    if by not in batch.schema.names:
        return [""] * batch.num_rows
    return list(map(label, batch[by].to_pylist()))


def score_columns(
    scorers: Mapping[str, Scorer], columns: Mapping[str, Any], place: Callable[[int], str]
) -> dict[str, NDArray[np.float32]]:
    """Return every scorer's scores (n,) of n documents; `place` names the shard and row of a position, for errors.

    Columns may be Arrow arrays, which become lists for the scorers that do not read them.

    Raises
    ------
    BadShardError
        If a scorer's column holds a value that is not a score.
    """
    plain = {one for scorer in scorers.values() if not scorer.reads_arrow for one in columns_of(scorer)}
    lists = {one: columns[one].to_pylist() for one in plain if isinstance(columns[one], pa.Array)}
    scores = {}
    for name, scorer in scorers.items():
        found = [columns[one] if scorer.reads_arrow else lists.get(one, columns[one]) for one in columns_of(scorer)]
        try:
            scores[name] = scorer.score(*found)
        except ColumnValueError as error:
            raise BadShardError(f"{place(error.position)}: {error}") from error
    return scores


def batch_scores(scorers: Mapping[str, Scorer], batch: pa.RecordBatch, shard: str) -> dict[str, NDArray[np.float32]]:
    """Return every scorer's scores (n,) of a batch of n documents of a shard; see `score_columns`."""
    columns: dict[str, Any] = defaultdict(lambda: [None] * batch.num_rows)
    columns |= zip(batch.schema.names, batch.columns, strict=True)
    return score_columns(scorers, columns, lambda position: f"{shard}, row {batch['row'][position]}")


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
