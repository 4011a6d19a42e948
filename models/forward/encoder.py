"""Define the interface of an encoder: texts in, unit vectors out.

Tokenising and forward passes are separate methods, so that they can run at the same time.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fineweb_mask.models.forward.tokens import TokenIds


class Encoded(NamedTuple):
    """Unit vectors of n documents."""

    vectors: NDArray[np.float32]  # (n, dimensions); unit norm, zeros where bad
    bad: NDArray[np.bool_]  # (n,) true if the model returned a zero or non-finite vector


class Encoder(ABC):
    """Encode texts as unit vectors.

    `tokenise` may run in any thread; `encode_tokens` in one thread at a time.
    """

    device: str
    """Name of the device that the model runs on."""

    dimensions: int
    """Number of values in a vector."""

    @abstractmethod
    def tokenise(self, texts: Sequence[str]) -> TokenIds:
        """Return the token ids that the model reads of each text, computed on the CPU."""

    @abstractmethod
    def encode_tokens(self, tokens: TokenIds) -> Callable[[], Encoded]:
        """Start the forward passes; return a function that waits for the n vectors, in the order of the texts."""

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Return the vectors of n texts, in their order."""
        return self.encode_tokens(self.tokenise(texts))()


def encoded(vectors: Tensor) -> Callable[[], Encoded]:
    """Scale rows (n, d) to norm 1, and copy them to the host, from a GPU in the background.

    A zero or non-finite row becomes zero and is flagged. The function that is returned waits for them.
    """
    vectors = vectors.float()
    norms = torch.linalg.vector_norm(vectors, dim=1)
    bad = ~torch.isfinite(norms) | (norms < torch.finfo(torch.float32).tiny)
    unit = (vectors / torch.where(bad, 1.0, norms)[:, None]).masked_fill_(bad[:, None], 0.0)
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
