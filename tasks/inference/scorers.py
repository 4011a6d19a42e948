"""The models behind the scorers: trained here, given by path, or fetched from the hub; each known by its content."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.quality.column import ColumnValueError
from fineweb_mask.models.quality.registry import Scorer, load_scorer
from fineweb_mask.models.settings.quality import (
    ColumnScorerSettings,
    EduScorerSettings,
    FastTextScorerSettings,
    ScorerSettings,
)
from fineweb_mask.models.urls import HUB
from fineweb_mask.tasks.inference.model_files import model_folder
from fineweb_mask.tasks.source.labels import LabelsError, check_labels
from fineweb_mask.tasks.workspace.job import BadShardError
from fineweb_mask.tasks.workspace.references import StageFile, digest, file_digest
from fineweb_mask.tasks.workspace.workspace import Workspace

_loading = threading.Lock()


class QualityModelError(SettingsError):
    """A scorer's model cannot be found."""


class QualityModel(BaseModel):
    """A scorer with the file or folder of its model; a scorer without a model has neither."""

    model_config = ConfigDict(frozen=True)

    settings: ScorerSettings
    path: str  # relative to the workspace if it was fitted there
    fingerprint: str

    @property
    def identity(self) -> str:
        """A digest of all that a score depends on, the document aside."""
        return digest([self.settings.model_dump(exclude=set(self.settings.NOT_IN_SCORE_KEY)), self.fingerprint])


def check_scorers(scorers: Sequence[ScorerSettings]) -> None:
    """Check that every scorer's model or labels are there, before any work starts.

    Raises
    ------
    QualityModelError
        If a file or one of its columns is missing.
    """
    for index, scorer in enumerate(scorers):
        where = f"quality.scorers.{index}"
        if isinstance(scorer, EduScorerSettings):
            _check_folder(scorer.model, where)
        elif isinstance(scorer, FastTextScorerSettings) and scorer.model is not None:
            if not scorer.model.startswith(HUB) and not Path(scorer.model).is_file():
                raise QualityModelError(f"{where}.model: {scorer.model!r} does not exist")
        elif isinstance(scorer, FastTextScorerSettings) and scorer.labels is not None:
            try:
                check_labels(scorer.labels)
            except LabelsError as error:
                raise QualityModelError(f"{where}.labels: {error}") from error


def _check_folder(model: str, where: str) -> None:
    folder = Path(model)
    if folder.is_dir():
        for pattern in ("config.json", "tokenizer.json", "*.safetensors"):
            if not any(folder.glob(pattern)):
                raise QualityModelError(f"{where}.model: the folder {model!r} has no {pattern}")


def fitted_model(settings: FastTextScorerSettings, fitted: StageFile) -> QualityModel:
    """Return the model that was trained in this workspace; `fitted` refers to its manifest."""
    return QualityModel(
        settings=settings, path=str(Path(fitted.path).with_suffix(".bin")), fingerprint=fitted.fingerprint
    )


def resolve_model(settings: ScorerSettings) -> QualityModel:
    """Return the model that a scorer names by path or hub address.

    Raises
    ------
    QualityModelError, ModelFolderError
        If there is no such file or folder.
    """
    if isinstance(settings, ColumnScorerSettings):
        return QualityModel(settings=settings, path="", fingerprint="")
    if isinstance(settings, EduScorerSettings):
        folder = model_folder(settings.model, f"scorer {settings.name!r}, model")
        return QualityModel(settings=settings, path=str(folder.path), fingerprint=folder.fingerprint)
    name = settings.model or ""
    path = _download(name) if name.startswith(HUB) else Path(name)
    if not path.is_file():
        raise QualityModelError(f"scorer {settings.name!r}: the model {name!r} does not exist")
    return QualityModel(settings=settings, path=str(path.absolute()), fingerprint=file_digest(path))


def _download(address: str) -> Path:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    parts = address.removeprefix(HUB).split("/", 2)
    if len(parts) < 3:
        raise QualityModelError(f"a hub address reads hf://owner/repository/file, received {address!r}")
    owner, repository, file = parts
    try:
        return Path(hf_hub_download(f"{owner}/{repository}", file))
    except (HfHubHTTPError, LocalEntryNotFoundError) as error:
        raise QualityModelError(
            f"cannot fetch {address}: {error}; without a network, download it first with "
            f"`hf download {owner}/{repository} {file}`"
        ) from error


def load_models(workspace: Workspace, models: list[QualityModel]) -> dict[str, Scorer]:
    """Return the scorers by name, each loaded once in this process."""
    with _loading:
        return {model.settings.name: _load(str(workspace.root / model.path), model) for model in models}


@cache
def _load(path: str, model: QualityModel) -> Scorer:
    return load_scorer(model.settings, path)


def columns_read(scorers: Iterable[Scorer], documents: pa.Schema, shard: str, *, with_text: bool = False) -> list[str]:
    """Return the columns of a shard's documents that scoring it reads: `row`, every scorer's, and `text` if asked.

    Raises
    ------
    BadShardError
        If the shard lacks one.
    """
    wanted = {scorer.column for scorer in scorers} | ({"text"} if with_text else set())
    if missing := sorted(wanted.difference(documents.names)):
        raise BadShardError(
            f"{shard}: no column {missing[0]!r} to take a score from: add it to the source, "
            "or set the scorer's column to another"
        )
    return ["row", *sorted(wanted)]


def score_columns(
    scorers: Mapping[str, Scorer], columns: Mapping[str, Sequence[Any]], place: Callable[[int], str]
) -> dict[str, NDArray[np.float32]]:
    """Return every scorer's scores (n,) of documents given as columns of n values.

    Raises
    ------
    BadShardError
        If a scorer's column holds a value that is no score; `place` names a document's shard and row.
    """
    scores = {}
    for name, scorer in scorers.items():
        try:
            scores[name] = scorer.score(columns[scorer.column])
        except ColumnValueError as error:
            raise BadShardError(f"{place(error.position)}: {error}") from error
    return scores


def batch_scores(scorers: Mapping[str, Scorer], batch: pa.RecordBatch, shard: str) -> dict[str, NDArray[np.float32]]:
    """Return every scorer's scores (n,) of a batch of a shard's documents; see `score_columns`."""
    reads_arrow = {name: scorer for name, scorer in scorers.items() if scorer.reads_arrow}
    others = {name: scorer for name, scorer in scorers.items() if name not in reads_arrow}
    lists = {name: batch[name].to_pylist() for name in {scorer.column for scorer in others.values()}}
    arrays = {scorer.column: batch[scorer.column] for scorer in reads_arrow.values()}

    def place(position: int) -> str:
        return f"{shard}, row {batch['row'][position]}"

    return score_columns(reads_arrow, arrays, place) | score_columns(others, lists, place)
