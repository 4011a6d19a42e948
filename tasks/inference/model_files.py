"""Model folders: one on this machine, or the newest snapshot of one on the Hugging Face hub, known by content."""

from pathlib import Path
from typing import NamedTuple

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.tasks.storage.atomic import tree_files
from fineweb_mask.tasks.workspace.references import digest, file_digest


class ModelFolderError(SettingsError):
    """A model is neither a folder here nor to be had from the hub."""


class ModelFolder(NamedTuple):
    """Where a model lies and what it holds."""

    path: Path
    fingerprint: str


def model_folder(model: str, setting: str) -> ModelFolder:
    """Return a model's folder, fetched from the hub if there is none of that name here.

    Parameters
    ----------
    model
        Folder, or hub name such as `Snowflake/snowflake-arctic-embed-m`.
    setting
        The setting that names it, for the error.

    Raises
    ------
    ModelFolderError
        If it is neither a folder nor to be had from the hub.
    """
    folder = Path(model)
    if folder.is_dir():
        content = digest([[file.relative_to(folder).as_posix(), file_digest(file)] for file in tree_files(folder)])
        return ModelFolder(folder.absolute(), content)
    snapshot = _download(model, setting)
    return ModelFolder(snapshot, f"{model}@{snapshot.name}")


def _download(model: str, setting: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    needed = ["*.json", "*.txt", "*.model", "*.safetensors"]  # no pickles, no code, no other frameworks' weights
    try:
        return Path(snapshot_download(model, allow_patterns=needed, ignore_patterns=["onnx/*", "openvino/*"]))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError) as error:
        raise ModelFolderError(
            f"{setting}: {model!r} is neither a folder here nor to be had from the hub: {error}; "
            f"without a network, download it first with `hf download {model}`"
        ) from error
