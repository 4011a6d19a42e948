"""Measure the diversity of vectors: mean cosine, effective rank, nearest neighbours; lay them out on a plane.

All functions take a sample that fits into memory: unit rows, (n, d) float32.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fineweb_mask.models.errors import DataError
from fineweb_mask.models.runtime.stopping import raise_if_stopped

Vectors = NDArray[np.floating[Any]]
Unit = NDArray[np.float32]

BLOCK_ROWS = 4_096  # rows of a float32 product
PRODUCT_ELEMENTS = 1 << 24  # entries in a block of similarities: 64 MiB
DIMENSIONS = 50
"""Principal components that distances are measured in."""
PERPLEXITY, ITERATIONS = 30.0, 500
FEWEST = 10
"""Rows below which neighbours mean nothing, and places are random."""


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


def effective_number(values: NDArray[np.floating[Any]]) -> float:
    """Return the exp of the entropy of normalised values: as many equal ones would have the same.

    Of the eigenvalues of a covariance it is the effective rank, from 1 (all variance on one axis) to d (equal variance
    on all axes); 0 without variance. Of a selection's documents by topic it is how evenly these are covered. Source:
    Roy and Vetterli, "The effective rank", EUSIPCO 2007, here applied to the covariance.
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


def lay_out(unit: Unit, seed: int = 0) -> NDArray[np.float32]:
    """Return a place on the plane for every unit row (n, d), near its neighbours, by t-SNE: (n, 2) float32.

    10,000 take half a minute of one core.

    Examples
    --------
    >>> topics = np.eye(3, 8, dtype=np.float32).repeat(40, axis=0)
    >>> places = lay_out(topics + 0.01 * np.random.default_rng(0).random((120, 8), dtype=np.float32))
    >>> places.shape
    (120, 2)
    """
    from sklearn.manifold import TSNE
    from sklearn.utils.extmath import randomized_svd
    from threadpoolctl import threadpool_limits

    if len(unit) < FEWEST or unit.shape[1] < 2 or not np.ptp(unit, axis=0).any():
        return np.random.default_rng(seed).normal(size=(len(unit), 2)).astype(np.float32)
    left, scale, _ = randomized_svd(unit - unit.mean(axis=0), min(DIMENSIONS, *unit.shape), random_state=seed)
    raise_if_stopped()
    with threadpool_limits(1):  # several threads add up in any order, and the smallest difference grows
        t_sne = TSNE(perplexity=min(PERPLEXITY, (len(unit) - 1) / 3), max_iter=ITERATIONS, random_state=seed)
        return np.asarray(t_sne.fit_transform(left * scale), dtype=np.float32)
