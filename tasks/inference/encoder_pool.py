"""The encoder's model in this process: loaded once, on every device that it may use."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from queue import SimpleQueue
from typing import Any

from fineweb_mask.models.embedding.encoder import Encoder
from fineweb_mask.models.forward.device import choose_devices
from fineweb_mask.models.settings import EmbeddingSettings

_loading = threading.Lock()


def load_copy(path: str, settings: EmbeddingSettings, device: str) -> Encoder[Any]:
    """Load the model; what runs it is imported here, so that a run that finds all embedded need not wait for that."""
    from fineweb_mask.models.embedding.load import load_encoder

    return load_encoder(path, settings, device)


class EncoderPool:
    """A copy of a model on each device; forward passes take whichever is free, one at a time on each.

    Parameters
    ----------
    path
        The model's folder.
    settings
        How it encodes; `device: auto` takes every GPU.

    Raises
    ------
    EncoderError
        If the model cannot be loaded.
    """

    def __init__(self, path: str, settings: EmbeddingSettings) -> None:
        self._path, self._settings = path, settings
        first, *others = choose_devices(settings.device)
        self.tokeniser = load_copy(path, settings, first)
        """The first copy: any number of threads may tokenise with it."""
        self._copies: dict[str, Encoder[Any]] = {first: self.tokeniser}
        self._free: SimpleQueue[str] = SimpleQueue()
        self.device = "cpu" if self.tokeniser.on_cpu else first
        """Where the forward passes run, or where the first of several copies does."""
        for device in [first] if self.tokeniser.on_cpu else [first, *others]:
            self._free.put(device)

    @contextmanager
    def encoder(self) -> Iterator[Encoder[Any]]:
        """Hold a copy of the model for the forward passes of one chunk; waits until a device is free."""
        device = self._free.get()
        try:
            if device not in self._copies:
                self._copies[device] = load_copy(self._path, self._settings, device)
            yield self._copies[device]
        finally:
            self._free.put(device)


@lru_cache(maxsize=1)
def _pool(path: str, _fingerprint: str, settings: EmbeddingSettings) -> EncoderPool:
    return EncoderPool(path, settings)


def encoder_pool(path: str, fingerprint: str, settings: EmbeddingSettings) -> EncoderPool:
    """Return the pool of a model, known by its content; the last one asked for stays loaded."""
    with _loading:
        return _pool(path, fingerprint, settings)
