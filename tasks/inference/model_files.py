"""Find a model's file or folder, on this machine or on the Hugging Face hub, and load an encoder once per process."""

import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.settings import EmbeddingSettings
from fineweb_mask.models.settings.quality import EduScorerSettings
from fineweb_mask.models.urls import HUB
from fineweb_mask.tasks.storage.atomic import tree_files
from fineweb_mask.tasks.workspace.references import digest, file_digest
from fineweb_mask.tasks.workspace.workspace import Workspace

if TYPE_CHECKING:
    from fineweb_mask.models.forward.encoder import Encoder

NEEDED = ["*.json", "*.txt", "*.model", "*.safetensors"]
"""Files of a model that are downloaded: no pickles and no code."""
NOT_NEEDED = ["onnx/*", "openvino/*"]
"""Weights of other frameworks."""
SHA256 = re.compile("[0-9a-f]{64}")
_loading = threading.Lock()


class ModelNotFoundError(SettingsError):
    """A model or its labels do not exist, or a model cannot be downloaded."""


class ModelFolder(BaseModel):
    """The folder of an encoder and a fingerprint of its content."""

    model_config = ConfigDict(frozen=True)

    path: str  # relative to the workspace if it was fitted there
    fingerprint: str
    scorer: EduScorerSettings | None = None  # the one that is the encoder


def model_folder(model: str, setting: str, parts: Sequence[str], what: str) -> ModelFolder:
    """Return a model's folder, downloading the newest snapshot from the hub if no such local folder exists.

    A local one must hold the `parts`, which are patterns, of `what` it is to be.

    Raises
    ------
    ModelNotFoundError
        If it is not such a folder and cannot be downloaded.
    """
    folder = Path(model)
    if folder.is_dir():
        for pattern in parts:
            if not any(folder.rglob(pattern)):
                raise ModelNotFoundError(
                    f"{setting}: the folder {model!r} has no {pattern}: it must be {what} in safetensors"
                )
        content = digest([[file.relative_to(folder).as_posix(), file_digest(file)] for file in tree_files(folder)])
        return ModelFolder(path=str(folder.absolute()), fingerprint=content)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    try:
        with _download_errors_explained(f"{setting}: {model!r} is not a folder, and it", model):
            snapshot = Path(snapshot_download(model, allow_patterns=NEEDED, ignore_patterns=NOT_NEEDED))
    except HFValidationError as error:
        raise ModelNotFoundError(
            f"{setting}: there is no folder {model!r}, and a model on the hub has a name such as owner/model: check "
            "its spelling"
        ) from error
    return ModelFolder(path=str(snapshot), fingerprint=f"{model}@{snapshot.name}")


def model_file(model: str, setting: str) -> Path:
    """Return a model's file, downloading it if `model` is an address on the hub: `hf://owner/repository[@revision]/file`.

    Raises
    ------
    ModelNotFoundError
        If the file does not exist, the address is malformed, the download fails, or the file has not the checksum of
        the hub, which a large file in the hub's cache is named by.
    """
    if not model.startswith(HUB):
        if not Path(model).is_file():
            raise ModelNotFoundError(f"{setting}: {model!r} does not exist: check its spelling")
        return Path(model).absolute()
    from huggingface_hub import hf_hub_download, parse_hf_uri
    from huggingface_hub.errors import HfUriError

    place, reason = None, "it names no file in a repository."
    try:
        place = parse_hf_uri(model)
    except HfUriError as error:
        reason = str(error)
    if place is None or not place.path_in_repo or place.type not in {"model", "dataset", "space"}:
        raise ModelNotFoundError(
            f"{setting}: {model!r}: {reason} An address on the hub must be hf://owner/repository/file, or "
            "hf://owner/repository@revision/file"
        )
    arguments = f"{place.id} {place.path_in_repo}"
    arguments += f" --repo-type {place.type}" if place.type != "model" else ""
    arguments += f" --revision {place.revision}" if place.revision else ""
    with _download_errors_explained(f"{setting}: {model!r}", arguments):
        path = Path(hf_hub_download(place.id, place.path_in_repo, repo_type=place.type, revision=place.revision))
    blob = path.resolve()
    if SHA256.fullmatch(blob.name) and blob.name != file_digest(path):
        raise ModelNotFoundError(f"{setting}: {blob} has not the checksum of the hub: delete it, and run again")
    return path


@contextmanager
def _download_errors_explained(model: str, arguments: str) -> Iterator[None]:
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        yield
    except (HfHubHTTPError, LocalEntryNotFoundError) as error:
        raise ModelNotFoundError(
            f"{model} cannot be downloaded from the hub: {' '.join(str(error).split())}; "
            f"without a network, download it first with `hf download {arguments}`"
        ) from error


def loaded_encoder(workspace: Workspace, model: ModelFolder, settings: EmbeddingSettings) -> "Encoder":
    """Return the encoder of a folder with this content; the last one stays loaded.

    Raises
    ------
    ModelError
        If the model cannot be loaded.
    """
    with _loading:
        return _load(model.model_copy(update={"path": str(workspace.local(model.path))}), settings)


@lru_cache(maxsize=1)
def _load(model: ModelFolder, settings: EmbeddingSettings) -> "Encoder":
    """Load the model; the slow imports are here, so that a run with nothing to embed does not wait for them."""
    if model.scorer is not None:
        from fineweb_mask.models.quality.transformer import EduScorer

        return EduScorer(model.scorer, model.path)
    from fineweb_mask.models.embedding.load import load_encoder

    return load_encoder(model.path, settings)
