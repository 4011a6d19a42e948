"""Define the interface of an encoder: texts in, unit vectors out.

Tokenising and forward passes are separate methods, so that they can run at the same time.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from fineweb_mask.models.forward.batches import Encoded

Tokenised = TypeVar("Tokenised")


class Encoder(ABC, Generic[Tokenised]):
    """Encode texts as unit vectors.

    `tokenise` may run in any thread; `encode_tokens` in one thread at a time.
    """

    device: str
    """Name of the device that the model runs on."""

    dimensions: int
    """Number of values in a vector."""

    @abstractmethod
    def tokenise(self, texts: Sequence[str]) -> Tokenised:
        """Return the argument of `encode_tokens` for n texts, computed on the CPU."""

    @abstractmethod
    def encode_tokens(self, tokens: Tokenised) -> Callable[[], Encoded]:
        """Start the forward passes; return a function that waits for the n vectors, in the order of the texts."""

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Return the vectors of n texts, in their order."""
        return self.encode_tokens(self.tokenise(texts))()
