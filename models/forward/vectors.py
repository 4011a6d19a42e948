"""What an encoder returns: unit vectors, row by row, bad ones marked."""

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Encoded(NamedTuple):
    """Vectors of a batch of documents."""

    vectors: NDArray[np.floating[Any]]  # (n, dimensions), float32 or float16; unit norm, zeros where bad
    bad: NDArray[np.bool_]  # (n,): the model gave a zero or non-finite vector


def unit_rows(
    vectors: Tensor,  # (n, d)
) -> tuple[Tensor, Tensor]:  # (n, d) float32, (n,) bool
    """Scale rows to norm 1; a zero or non-finite one becomes zero and is marked."""
    vectors = vectors.float()
    norms = torch.linalg.vector_norm(vectors, dim=1)
    bad = ~torch.isfinite(norms) | (norms < torch.finfo(torch.float32).tiny)
    unit = vectors / torch.where(bad, 1.0, norms)[:, None]
    return unit.masked_fill_(bad[:, None], 0.0), bad


def unit_vectors(vectors: NDArray[np.float32]) -> Encoded:
    """Return vectors (n, dimensions) scaled to norm 1; a zero or non-finite one becomes zero and is marked."""
    unit, bad = unit_rows(torch.from_numpy(vectors))
    return Encoded(unit.numpy(), bad.numpy())
