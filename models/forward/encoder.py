"""Define the interface of an encoder: texts in, unit vectors out.

Tokenising and forward passes are separate methods, so that they can run at the same time.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Tokenised = TypeVar("Tokenised")


class Encoded(NamedTuple):
    """Unit vectors of n documents."""

    vectors: NDArray[np.floating[Any]]  # (n, dimensions), float32 or float16; unit norm, zeros where bad
    bad: NDArray[np.bool_]  # (n,) true if the model returned a zero or non-finite vector


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


def unit_rows(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Scale rows (n, d) to norm 1: (n, d) float32; a zero or non-finite row becomes zero and is flagged, (n,) bool."""
    vectors = vectors.float()
    norms = torch.linalg.vector_norm(vectors, dim=1)
    bad = ~torch.isfinite(norms) | (norms < torch.finfo(torch.float32).tiny)
    unit = vectors / torch.where(bad, 1.0, norms)[:, None]
    return unit.masked_fill_(bad[:, None], 0.0), bad


def encoded(vectors: Tensor, precision: str = "float32") -> Callable[[], Encoded]:
    """Scale vectors (n, d) to norm 1, and copy them to the host in a precision, from a GPU in the background.

    The function that is returned waits for them.
    """
    unit, bad = unit_rows(vectors)
    unit = unit.to(getattr(torch, precision))
    if vectors.device.type != "cuda":
        return lambda: Encoded(unit.numpy(), bad.numpy())
    hosts = [
        torch.empty(one.shape, dtype=one.dtype, pin_memory=True).copy_(one, non_blocking=True) for one in (unit, bad)
    ]
    copied: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
    copied.record()

    def wait() -> Encoded:
        copied.synchronize()
        return Encoded(hosts[0].numpy(), hosts[1].numpy())

    return wait
