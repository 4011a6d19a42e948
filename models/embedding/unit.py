"""What an encoder returns: unit vectors, row by row, bad ones marked."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Encoded(NamedTuple):
    """Vectors of a batch of documents."""

    vectors: NDArray[np.float32]  # (n, dimensions); unit norm, zeros where bad
    bad: NDArray[np.bool_]  # (n,): the model gave a zero or non-finite vector


def unit_vectors(vectors: NDArray[np.float32]) -> Encoded:
    """Return vectors (n, dimensions) scaled to norm 1; a zero or non-finite one becomes zero and is marked."""
    norms = np.linalg.norm(vectors, axis=1)
    bad = ~np.isfinite(norms) | (norms < np.finfo(np.float32).tiny)
    unit = (vectors / np.where(bad, 1.0, norms)[:, None]).astype(np.float32)
    unit[bad] = 0.0
    return Encoded(unit, bad)
