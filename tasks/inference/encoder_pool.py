"""Load the encoder once per process, with a copy on every device that it may use."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from queue import SimpleQueue
from typing import Any

from fineweb_mask.models.forward.device import choose_devices
from fineweb_mask.models.forward.encoder import Encoder
from fineweb_mask.models.settings import EmbeddingSettings
from fineweb_mask.tasks.inference.model_files import ModelFolder
from fineweb_mask.tasks.workspace.workspace import Workspace

_loading = threading.Lock()


def load_copy(model: ModelFolder, settings: EmbeddingSettings, device: str) -> Encoder[Any]:
    """Load the model; the slow imports are here, so that a run with nothing to embed does not wait for them."""
    if model.scorer is not None:
        from fineweb_mask.models.quality.transformer import EduScorer

        return EduScorer(model.scorer, model.path, device)
    from fineweb_mask.models.embedding.load import load_encoder

    return load_encoder(model.path, settings, device)


class EncoderPool:
    """A copy of a model on each device; each copy runs one forward pass at a time.

    Raises
    ------
    ModelError
        If the model cannot be loaded.
    """

    def __init__(self, model: ModelFolder, settings: EmbeddingSettings) -> None:
        self._model, self._settings = model, settings
        devices = choose_devices("auto")
        self.first = load_copy(model, settings, devices[0])
        """The copy on the first device; its tokeniser is thread-safe."""
        self._copies: dict[str, Encoder[Any]] = {self.first.device: self.first}
        self._free: SimpleQueue[str] = SimpleQueue()
        for device in devices if self.first.device == devices[0] else [self.first.device]:
            self._free.put(device)

    @contextmanager
    def encoder(self) -> Iterator[Encoder[Any]]:
        """Reserve a copy of the model while the block runs; waits until one is free."""
        device = self._free.get()
        try:
            if device not in self._copies:
                self._copies[device] = load_copy(self._model, self._settings, device)
            yield self._copies[device]
        finally:
            self._free.put(device)


_last_pool = lru_cache(maxsize=1)(EncoderPool)


def encoder_pool(workspace: Workspace, model: ModelFolder, settings: EmbeddingSettings) -> EncoderPool:
    """Return the pool of a model with this content; the last pool stays loaded."""
    with _loading:
        return _last_pool(model.model_copy(update={"path": str(workspace.local(model.path))}), settings)
