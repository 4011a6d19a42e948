"""What an encoder is: texts in, unit vectors out, tokenising apart from the forward passes so that they overlap."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from fineweb_mask.models.errors import ModelError
from fineweb_mask.models.forward.vectors import Encoded

Tokenised = TypeVar("Tokenised")


class EncoderError(ModelError):
    """The encoder's model cannot be loaded or used as the settings ask."""


class Encoder(ABC, Generic[Tokenised]):
    """Turns texts into unit vectors.

    `tokenise` may run in another thread than `encode_tokens`, which one thread at a time may call.
    """

    on_cpu = False
    """Whether the forward passes run on the CPU, whatever the device asked for."""

    @property
    @abstractmethod
    def dimensions(self) -> int:
        """Length of a vector."""

    @abstractmethod
    def tokenise(self, texts: Sequence[str]) -> Tokenised:
        """Return what `encode_tokens` takes, made on the processor."""

    @abstractmethod
    def encode_tokens(self, tokens: Tokenised) -> Callable[[], Encoded]:
        """Start the forward passes; the function that is returned waits for the vectors, in the order of the texts."""

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Return the vectors of the texts."""
        return self.encode_tokens(self.tokenise(texts))()
