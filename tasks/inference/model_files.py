"""Find a model's file or folder: on this machine, or downloaded from the Hugging Face hub."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.urls import HUB
from fineweb_mask.tasks.storage.atomic import tree_files
from fineweb_mask.tasks.workspace.references import digest, file_digest

if TYPE_CHECKING:
    from huggingface_hub import HfUri


NEEDED = ["*.json", "*.txt", "*.model", "*.safetensors"]
"""Files of a model that are downloaded: no pickles and no code."""
NOT_NEEDED = ["onnx/*", "openvino/*"]
"""Weights of other frameworks."""
SHA256 = re.compile("[0-9a-f]{64}")


class ModelNotFoundError(SettingsError):
    """A model or its labels do not exist, or a model cannot be downloaded."""


class ModelFolder(BaseModel):
    """A model's folder and a fingerprint of its content."""

    model_config = ConfigDict(frozen=True)

    path: str  # relative to the workspace if it was fitted there
    fingerprint: str


def model_folder(model: str, setting: str) -> ModelFolder:
    """Return a model's folder, downloading the newest snapshot from the hub if no such local folder exists.

    Raises
    ------
    ModelNotFoundError
        If it is not a folder and cannot be downloaded.
    """
    folder = Path(model)
    if folder.is_dir():
        content = digest([[file.relative_to(folder).as_posix(), file_digest(file)] for file in tree_files(folder)])
        return ModelFolder(path=str(folder.absolute()), fingerprint=content)
    from huggingface_hub import snapshot_download

    with _download_errors_explained(f"{setting}: {model!r} is not a folder, and it", model):
        snapshot = Path(snapshot_download(model, allow_patterns=NEEDED, ignore_patterns=NOT_NEEDED))
    return ModelFolder(path=str(snapshot), fingerprint=f"{model}@{snapshot.name}")


def check_model_folder(model: str, setting: str) -> None:
    """Check that a model is a folder, or may be the name of one on the hub, without asking the hub.

    Raises
    ------
    ModelNotFoundError
        If not.
    """
    if Path(model).is_dir():
        return
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils._validators import validate_repo_id

    try:
        validate_repo_id(model)
    except HFValidationError as error:
        raise ModelNotFoundError(
            f"{setting}: there is no folder {model!r}, and a model on the hub has a name such as owner/model: check "
            "its spelling"
        ) from error


def model_file(model: str, setting: str) -> Path:
    """Return a model's file, downloading it if `model` is an address on the hub: `hf://owner/repository[@revision]/file`.

    Raises
    ------
    ModelNotFoundError
        If the file does not exist, the address is malformed, or the download fails.
    """
    if not model.startswith(HUB):
        if not Path(model).is_file():
            raise ModelNotFoundError(f"{setting}: {model!r} does not exist: check its spelling")
        return Path(model).absolute()
    from huggingface_hub import hf_hub_download

    place = _parse_address(model, setting)
    arguments = f"{place.id} {place.path_in_repo}"
    arguments += f" --repo-type {place.type}" if place.type != "model" else ""
    arguments += f" --revision {place.revision}" if place.revision else ""
    with _download_errors_explained(f"{setting}: {model!r}", arguments):
        return Path(hf_hub_download(place.id, place.path_in_repo, repo_type=place.type, revision=place.revision))


def check_download(path: Path, sha256: str, setting: str) -> None:
    """Check that a file of the hub's cache has the checksum of the hub, which a large file there is named by.

    Raises
    ------
    ModelNotFoundError
        If not.
    """
    blob = path.resolve()
    if SHA256.fullmatch(blob.name) and blob.name != sha256:
        raise ModelNotFoundError(f"{setting}: {blob} has not the checksum of the hub: delete it, and run again")


def check_model_file(model: str, setting: str) -> None:
    """Check that a model's file exists or that its address on the hub is well-formed, without downloading it.

    Raises
    ------
    ModelNotFoundError
        If not.
    """
    if model.startswith(HUB):
        _parse_address(model, setting)
    else:
        model_file(model, setting)


def _parse_address(address: str, setting: str) -> "HfUri":
    from huggingface_hub import parse_hf_uri
    from huggingface_hub.errors import HfUriError

    reason = "it names no file in a repository."
    try:
        parsed = parse_hf_uri(address)
        if parsed.path_in_repo and parsed.type in {"model", "dataset", "space"}:
            return parsed
    except HfUriError as error:
        reason = str(error)
    raise ModelNotFoundError(
        f"{setting}: {address!r}: {reason} An address on the hub must be hf://owner/repository/file, or "
        "hf://owner/repository@revision/file"
    )


@contextmanager
def _download_errors_explained(model: str, arguments: str) -> Iterator[None]:
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        yield
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError) as error:
        raise ModelNotFoundError(
            f"{model} cannot be downloaded from the hub: {' '.join(str(error).split())}; "
            f"without a network, download it first with `hf download {arguments}`"
        ) from error
