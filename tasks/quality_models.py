"""The models behind the scorers: trained here, given by path, or fetched from the hub; each known by its content."""

from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict

from models.quality.scorer import Scorer, load_scorer
from models.quality.settings import FastTextScorerSettings
from tasks.lake import StageFile, Workspace, digest, file_digest

HUB = "hf://"


class QualityModelError(ValueError):
    """A scorer's model cannot be found."""


class QualityModel(BaseModel):
    """A scorer with the file of its model."""

    model_config = ConfigDict(frozen=True)

    settings: FastTextScorerSettings
    path: str  # relative to the workspace if it was fitted there
    fingerprint: str

    @property
    def identity(self) -> str:
        """A digest of all that a score depends on, the text aside."""
        reads = self.settings.model_dump(include={"name", "kind", "positive_label", "max_chars", "lowercase"})
        return digest([reads, self.fingerprint])


def check_scorers(scorers: list[FastTextScorerSettings]) -> None:
    """Check that every scorer's model or labels are there, before any work starts.

    Raises
    ------
    QualityModelError
        If a file or one of its columns is missing.
    """
    for index, scorer in enumerate(scorers):
        where = f"quality.scorers.{index}"
        if scorer.model is not None:
            if not scorer.model.startswith(HUB) and not Path(scorer.model).is_file():
                raise QualityModelError(f"{where}.model: {scorer.model!r} does not exist")
        elif scorer.labels is not None:
            try:
                names = pq.read_schema(scorer.labels.path).names
            except (OSError, pa.ArrowInvalid) as error:
                raise QualityModelError(
                    f"{where}.labels.path: {scorer.labels.path!r} cannot be read as Parquet: {error}"
                ) from error
            for setting, column in (
                ("text_column", scorer.labels.text_column),
                ("score_column", scorer.labels.score_column),
            ):
                if column not in names:
                    raise QualityModelError(f"{where}.labels.{setting}: no column {column!r}, set it to one of {names}")


def fitted_model(settings: FastTextScorerSettings, fitted: StageFile) -> QualityModel:
    """Return the model that was trained in this workspace; `fitted` refers to its manifest."""
    return QualityModel(
        settings=settings, path=str(Path(fitted.path).with_suffix(".bin")), fingerprint=fitted.fingerprint
    )


def given_model(settings: FastTextScorerSettings) -> QualityModel:
    """Return the model that a scorer names by path or hub address.

    Raises
    ------
    QualityModelError
        If there is no such file.
    """
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
    return {model.settings.name: _load(str(workspace.root / model.path), model) for model in models}


@cache
def _load(path: str, model: QualityModel) -> Scorer:
    return load_scorer(model.settings, path)
