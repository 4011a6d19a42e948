"""Scale vectors to norm 1 and flag those that cannot be scaled."""

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Encoded(NamedTuple):
    """Unit vectors of n documents."""

    vectors: NDArray[np.floating[Any]]  # (n, dimensions), float32 or float16; unit norm, zeros where bad
    bad: NDArray[np.bool_]  # (n,) true if the model returned a zero or non-finite vector


def unit_rows(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Scale rows (n, d) to norm 1: (n, d) float32; a zero or non-finite row becomes zero and is flagged, (n,) bool."""
    vectors = vectors.float()
    norms = torch.linalg.vector_norm(vectors, dim=1)
    bad = ~torch.isfinite(norms) | (norms < torch.finfo(torch.float32).tiny)
    unit = vectors / torch.where(bad, 1.0, norms)[:, None]
    return unit.masked_fill_(bad[:, None], 0.0), bad


def unit_vectors(vectors: NDArray[np.float32]) -> Encoded:
    """Scale vectors (n, dimensions) to norm 1; a zero or non-finite vector becomes zero and is flagged."""
    unit, bad = unit_rows(torch.from_numpy(vectors))
    return Encoded(unit.numpy(), bad.numpy())
