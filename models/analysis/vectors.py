"""How far vectors spread: effective rank, mean cosine, nearest neighbours, the plane of most variance.

All of it is for a sample that fits into memory: vectors are unit rows, (n, d) float32.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

Vectors = NDArray[np.floating[Any]]
Unit = NDArray[np.float32]

BLOCK_ROWS = 4_096
PRODUCT_ELEMENTS = 1 << 24  # of one block of similarities: 64 MiB


def unit_rows(vectors: Vectors) -> Unit:
    """Return rows scaled to length one, (n, d) float32.

    Raises
    ------
    ValueError
        If a row is zero or not finite: it has no direction.
    """
    rows = vectors.astype(np.float32)
    lengths = np.linalg.norm(rows.astype(np.float64), axis=1)
    if not (np.isfinite(lengths) & (lengths > 0)).all():
        raise ValueError("a row is zero or not finite")
    return np.asarray(rows / lengths[:, None], dtype=np.float32)


def mean_cosine(unit: Unit) -> float | None:
    """Return the mean cosine over all pairs of two different rows; None for fewer than two rows.

    Computed from the sum s of the rows: the cosines of all ordered pairs add up to |s|^2 - n.
    """
    n = len(unit)
    if n < 2:
        return None
    total = unit.sum(axis=0, dtype=np.float64)
    own = np.einsum("ij,ij->", unit, unit, dtype=np.float64)
    return float((total @ total - own) / (n * (n - 1)))


def covariance(unit: Unit) -> NDArray[np.float64]:
    """Return the covariance of n >= 1 rows, (d, d); products are float32, their sum over blocks of rows float64."""
    mean = unit.mean(axis=0, dtype=np.float64).astype(np.float32)
    products = np.zeros((unit.shape[1], unit.shape[1]))
    for start in range(0, len(unit), BLOCK_ROWS):
        centred = unit[start : start + BLOCK_ROWS] - mean
        products += centred.T @ centred
    return products / len(unit)


def spectrum(unit: Unit) -> NDArray[np.float64]:
    """Return the eigenvalues of the covariance of n >= 1 rows, (d,), descending, none negative."""
    return np.asarray(np.linalg.eigvalsh(covariance(unit))[::-1].clip(min=0))


def effective_rank(values: NDArray[np.floating[Any]]) -> float:
    """Return exp of the entropy of normalised eigenvalues: of how many dimensions the spread makes full use.

    From 1 (all on one line) to d (the same in every direction); 0 without any spread. Source: Roy and Vetterli, "The
    effective rank", EUSIPCO 2007, here of the covariance.
    """
    total = float(values.sum())
    if total <= np.finfo(np.float32).eps:  # what the rounding of equal float32 rows leaves
        return 0.0
    shares = values[values > 0] / total
    return float(np.exp(-(shares * np.log(shares)).sum()))


class Axes(NamedTuple):
    """Where the rows vary most."""

    mean: NDArray[np.float64]  # (d,)
    axes: NDArray[np.float64]  # (d, k) unit vectors in columns, the one of most variance first
    explained: NDArray[np.float64]  # (k,) share of the variance

    def project(self, unit: Unit) -> NDArray[np.float64]:
        """Return the coordinates of rows, (n, k)."""
        return np.asarray((unit - self.mean) @ self.axes)


def principal_axes(unit: Unit, dimensions: int = 2) -> Axes:
    """Return the axes of most variance; each points to where its largest component is positive, so it is one only."""
    products = covariance(unit)
    d = len(products)
    values, axes = eigh(products, subset_by_index=[max(0, d - dimensions), d - 1])
    axes = axes[:, ::-1]
    largest = np.abs(axes).argmax(axis=0)
    total = max(float(np.trace(products)), 1e-30)
    return Axes(
        mean=unit.mean(axis=0, dtype=np.float64),
        axes=axes * np.sign(axes[largest, np.arange(axes.shape[1])]),
        explained=values[::-1].clip(min=0) / total,
    )


def nearest_cosines(unit: Unit, among: Unit, own: NDArray[np.integer[Any]] | None = None) -> NDArray[np.float32]:
    """Return each row's largest cosine with a row of `among`, (n,); -1 where there is none to compare with.

    Parameters
    ----------
    unit
        (n, d) rows to compare.
    among
        (m, d) rows to find neighbours in.
    own
        (n,) where each row itself stands in `among` (-1: nowhere); it is no neighbour of its own.
    """
    closest = np.full(len(unit), -1, dtype=np.float32)
    step = max(1, PRODUCT_ELEMENTS // max(1, len(among)))
    for start in range(0, len(unit), step):
        cosines = unit[start : start + step] @ among.T
        if own is not None:
            places = own[start : start + step]
            inside = np.flatnonzero(places >= 0)
            cosines[inside, places[inside]] = -1
        if len(among):
            closest[start : start + step] = cosines.max(axis=1)
    return np.clip(closest, -1, 1, out=closest)
