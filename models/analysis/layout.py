"""Lay vectors out on a plane so that neighbours stay neighbours: t-SNE of a sample, and every other row beside it."""

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fineweb_mask.models.analysis.vectors import Unit, principal_axes
from fineweb_mask.models.runtime.stopping import raise_if_stopped

DIMENSIONS = 50
"""Principal components that distances are measured in."""
PERPLEXITY = 30.0
NEAREST = 5
"""Rows of the sample that say where another row is placed."""
SPREAD = 0.3
"""How far a row is moved from there, in median distances between neighbours of the sample: equal rows stay visible."""
FEWEST = 10
"""Rows below which neighbours mean nothing."""
BLOCK_ROWS = 4_096


def lay_out(unit: Unit, most_exact: int = 5_000, seed: int = 0) -> NDArray[np.float32]:
    """Return a place on the plane for every row, (n, 2) float32.

    Parameters
    ----------
    unit
        Unit rows, (n, d) float32.
    most_exact
        Size of the sample that t-SNE lays out; its time grows with it.
    seed
        Of the sample, and of what is moved.

    Notes
    -----
    t-SNE is scikit-learn's (Barnes-Hut; van der Maaten, JMLR 2014), from the principal components on. A row outside of
    the sample is placed at the mean of its nearest rows in it, by their similarity, as openTSNE does it
    (Poličar et al., Journal of Statistical Software 2024). On machines with other numbers of cores, places may differ.

    Examples
    --------
    >>> import numpy as np
    >>> topics = np.eye(3, 8, dtype=np.float32).repeat(40, axis=0)
    >>> places = lay_out(topics + 0.01 * np.random.default_rng(0).random((120, 8), dtype=np.float32))
    >>> places.shape
    (120, 2)
    """
    from sklearn.neighbors import KNeighborsRegressor, NearestNeighbors

    if unit.shape[1] < 2:
        unit = np.pad(unit, ((0, 0), (0, 2 - unit.shape[1])))
    short = principal_axes(unit, min(DIMENSIONS, unit.shape[1])).project(unit).astype(np.float32)
    if len(unit) < FEWEST:
        return short[:, :2]
    generator = np.random.default_rng(seed)
    sample = np.sort(generator.choice(len(unit), size=min(most_exact, len(unit)), replace=False))
    known = _t_sne(short[sample], seed)
    places = np.empty((len(unit), 2), dtype=np.float32)
    places[sample] = known
    others = np.setdiff1d(np.arange(len(unit)), sample, assume_unique=True)
    beside = KNeighborsRegressor(min(NEAREST, len(sample)), weights=_gaussian, algorithm="brute", n_jobs=-1)
    beside.fit(short[sample], known)
    for start in range(0, len(others), BLOCK_ROWS):
        raise_if_stopped()
        rows = others[start : start + BLOCK_ROWS]
        places[rows] = beside.predict(short[rows])
    if len(others):
        apart = np.median(NearestNeighbors(n_neighbors=1).fit(known).kneighbors()[0])
        places[others] += generator.normal(0, SPREAD * float(apart), size=(len(others), 2)).astype(np.float32)
    return places


def _t_sne(rows: NDArray[np.float32], seed: int) -> NDArray[np.float32]:
    from sklearn.manifold import TSNE

    perplexity = min(PERPLEXITY, (len(rows) - 1) / 3)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "invalid value encountered in divide", RuntimeWarning)  # rows all alike
        start: NDArray[np.float32] | str = "pca" if rows[:, 0].std() > 0 else "random"
        reducer = TSNE(perplexity=perplexity, init=start, random_state=seed, n_jobs=-1)
        return np.asarray(reducer.fit_transform(rows), dtype=np.float32)


def _gaussian(distances: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
    """Return the weights of each row's nearest, (n, k), by a Gaussian of their distances, (n, k)."""
    squared = distances**2
    width = np.maximum(squared.mean(axis=1, keepdims=True), 1e-12)
    return np.asarray(np.exp((squared.min(axis=1, keepdims=True) - squared) / width * squared.shape[1]))
