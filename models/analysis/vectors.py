"""Measure the diversity of vectors: mean cosine, effective rank, nearest neighbours.

All functions take a sample that fits into memory: unit rows, (n, d) float32.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fineweb_mask.models.errors import DataError

Vectors = NDArray[np.floating[Any]]
Unit = NDArray[np.float32]

BLOCK_ROWS = 4_096  # rows of a float32 product
PRODUCT_ELEMENTS = 1 << 24  # entries in a block of similarities: 64 MiB


def unit_rows(vectors: Vectors) -> Unit:
    """Return rows scaled to norm 1, (n, d) float32; raise DataError if one is zero or not finite."""
    rows = vectors.astype(np.float32)
    lengths: NDArray[np.float64] = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))
    if not (np.isfinite(lengths) & (lengths > 0)).all():
        raise DataError("a row is zero or not finite, so it has no direction: leave it out")
    return np.divide(rows, lengths[:, None], out=rows, casting="same_kind")


def mean_cosine(unit: Unit) -> float | None:
    """Return the mean cosine over all pairs of two different rows; None for fewer than two rows.

    Computed in O(n d) from the sum s of the rows: the cosines of all ordered pairs add up to |s|^2 - n.
    """
    n = len(unit)
    if n < 2:
        return None
    total = unit.sum(axis=0, dtype=np.float64)
    own = np.einsum("ij,ij->", unit, unit, dtype=np.float64)
    return float((total @ total - own) / (n * (n - 1)))


def spectrum(unit: Unit) -> NDArray[np.float64]:
    """Return the eigenvalues of the covariance of n >= 1 rows, (d,), descending and not negative."""
    from threadpoolctl import threadpool_limits

    mean = unit.mean(axis=0, dtype=np.float64).astype(np.float32)
    products = np.zeros((unit.shape[1], unit.shape[1]))
    for start in range(0, len(unit), BLOCK_ROWS):  # products of blocks are float32, their sum is float64
        centred = unit[start : start + BLOCK_ROWS] - mean
        products += centred.T @ centred
    with threadpool_limits(1):  # several threads wait for each other most of the time: 20 times the processor's time
        return np.asarray(np.linalg.eigvalsh(products / len(unit))[::-1].clip(min=0))


def effective_rank(values: NDArray[np.floating[Any]]) -> float:
    """Return the effective number of dimensions: exp of the entropy of the normalised eigenvalues.

    From 1 (all variance on one axis) to d (equal variance on all axes); 0 without variance. Source: Roy and Vetterli,
    "The effective rank", EUSIPCO 2007, here applied to the covariance.
    """
    total = float(values.sum())
    if total <= np.finfo(np.float32).eps:  # rounding error of equal float32 rows
        return 0.0
    shares = values[values > 0] / total
    return float(np.exp(-(shares * np.log(shares)).sum()))


def nearest_cosines(unit: Unit, among: Unit, own: NDArray[np.integer[Any]] | None = None) -> NDArray[np.float32]:
    """Return the largest cosine of each row (n, d) with a row of `among` (m, d): (n,); -1 if there is none.

    `own` is the index of each row in `among`, (n,), -1 if absent; a row is not its own neighbour.
    """
    closest = np.full(len(unit), -1, dtype=np.float32)
    step = max(1, PRODUCT_ELEMENTS // max(1, len(among)))
    for start in range(0, len(unit), step):
        cosines = unit[start : start + step] @ among.T
        if own is not None:
            indices = own[start : start + step]
            inside = np.flatnonzero(indices >= 0)
            cosines[inside, indices[inside]] = -1
        if len(among):
            closest[start : start + step] = cosines.max(axis=1)
    return np.clip(closest, -1, 1, out=closest)
