"""Load the encoder once per process."""

import threading
from functools import lru_cache
from typing import Any

from fineweb_mask.models.forward.encoder import Encoder
from fineweb_mask.models.settings import EmbeddingSettings
from fineweb_mask.tasks.inference.model_files import ModelFolder
from fineweb_mask.tasks.workspace.workspace import Workspace

_loading = threading.Lock()


def loaded_encoder(workspace: Workspace, model: ModelFolder, settings: EmbeddingSettings) -> Encoder[Any]:
    """Return the encoder of a folder with this content; the last one stays loaded.

    Raises
    ------
    ModelError
        If the model cannot be loaded.
    """
    with _loading:
        return _load(model.model_copy(update={"path": str(workspace.local(model.path))}), settings)


@lru_cache(maxsize=1)
def _load(model: ModelFolder, settings: EmbeddingSettings) -> Encoder[Any]:
    """Load the model; the slow imports are here, so that a run with nothing to embed does not wait for them."""
    if model.scorer is not None:
        from fineweb_mask.models.quality.transformer import EduScorer

        return EduScorer(model.scorer, model.path)
    from fineweb_mask.models.embedding.load import load_encoder

    return load_encoder(model.path, settings)
