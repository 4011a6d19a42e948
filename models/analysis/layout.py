"""Lay vectors out on a plane so that neighbours stay neighbours: t-SNE of a sample, and every other row beside it."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fineweb_mask.models.analysis.vectors import Unit, principal_axes
from fineweb_mask.models.runtime.stopping import raise_if_stopped

DIMENSIONS = 50
"""Principal components that distances are measured in."""
PERPLEXITY = 30.0
EXAGGERATION, EXAGGERATED, ITERATIONS = np.float32(12), 250, 500
"""Factor of the similarities at first, the iterations with it, and all of them."""
BISECTIONS = 40
LEAST_EXACT = 1_000
"""Rows that t-SNE lays out at least; of more than four times as many, a quarter."""
NEAREST = 5
"""Rows of the sample that say where another row is placed."""
SPREAD = 0.3
"""How far a row is moved from there, in median distances between neighbours of the sample: equal rows stay visible."""
FEWEST = 10
"""Rows below which neighbours mean nothing."""
BLOCK_ROWS = 4_096


def lay_out(unit: Unit, most_exact: int = 3_000, seed: int = 0) -> NDArray[np.float32]:
    """Return a place on the plane for every row, (n, 2) float32.

    Parameters
    ----------
    unit
        Unit rows, (n, d) float32.
    most_exact
        Most rows that t-SNE lays out; its time grows with their square.
    seed
        Of the sample, and of what is moved.

    Notes
    -----
    t-SNE's gradient (van der Maaten and Hinton, JMLR 2008) is computed exactly: for a few thousand rows that takes a
    fraction of the time of scikit-learn's, which approximates it. A row outside of the sample is placed at the mean of
    its nearest rows in it, by their similarity, as openTSNE does it (Poličar et al., Journal of Statistical Software
    2024).

    Examples
    --------
    >>> import numpy as np
    >>> topics = np.eye(3, 8, dtype=np.float32).repeat(40, axis=0)
    >>> places = lay_out(topics + 0.01 * np.random.default_rng(0).random((120, 8), dtype=np.float32))
    >>> places.shape
    (120, 2)
    """
    from sklearn.neighbors import KNeighborsRegressor, NearestNeighbors
    from sklearn.utils.extmath import randomized_svd
    from threadpoolctl import threadpool_limits

    if unit.shape[1] < 2:
        unit = np.pad(unit, ((0, 0), (0, 2 - unit.shape[1])))
    if len(unit) < FEWEST:
        return principal_axes(unit, 2).project(unit).astype(np.float32)
    left, scale, _ = randomized_svd(unit - unit.mean(axis=0), min(DIMENSIONS, *unit.shape), random_state=seed)
    short = (left * scale).astype(np.float32)
    generator = np.random.default_rng(seed)
    size = min(most_exact, max(LEAST_EXACT, len(unit) // 4), len(unit))
    sample = np.sort(generator.choice(len(unit), size=size, replace=False))
    with threadpool_limits(1):  # on matrices as small as these, threads wait for each other most of the time
        known = _t_sne(short[sample], generator)
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


def _t_sne(rows: NDArray[np.float32], generator: np.random.Generator) -> NDArray[np.float32]:
    """Return a place for each of n rows, (n, 2), by the exact gradient, in matrices of (n, n) float32."""
    n = len(rows)
    joint = _similarities(rows) * EXAGGERATION
    start = rows[:, :2] if rows[:, 0].std() > 0 else generator.normal(size=(n, 2))
    places = np.asarray(start / max(float(start[:, 0].std()), 1e-12) * 1e-4, dtype=np.float32)
    step, gains, rate = np.zeros_like(places), np.ones_like(places), max(n / 48, 50.0)  # as scikit-learn's
    pull = np.empty_like(joint)
    for iteration in range(ITERATIONS):
        raise_if_stopped()
        early = iteration < EXAGGERATED
        if iteration == EXAGGERATED:
            joint /= EXAGGERATION
        squares = (places**2).sum(axis=1)
        near = places @ (-2 * places.T)
        near += squares[:, None] + 1
        near += squares
        np.reciprocal(near, out=near)
        np.fill_diagonal(near, 0)
        np.multiply(near, -1 / near.sum(), out=pull)
        pull += joint
        pull *= near
        gradient = 4 * (places * pull.sum(axis=1, keepdims=True) - pull @ places)
        gains = np.where(gradient * step < 0, gains + 0.2, gains * 0.8).clip(min=0.01)
        step = (0.5 if early else 0.8) * step - rate * gains * gradient
        places += step
        places -= places.mean(axis=0)
    return places


def _similarities(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return t-SNE's joint probabilities, (n, n): of each row's nearest, by Gaussians of the same perplexity."""
    from sklearn.neighbors import NearestNeighbors

    perplexity = min(PERPLEXITY, (len(rows) - 1) / 3)
    count = min(int(3 * perplexity) + 1, len(rows) - 1)
    distances, index = NearestNeighbors(n_neighbors=count, algorithm="brute").fit(rows).kneighbors()
    squared = distances.astype(np.float64) ** 2
    squared -= squared[:, :1]
    squared /= max(float(squared.mean()), 1e-12)
    low, high = np.zeros((len(rows), 1)), np.full((len(rows), 1), np.inf)
    width = np.ones((len(rows), 1))
    for _ in range(BISECTIONS):
        weights = np.exp(-squared * width)
        weights /= weights.sum(axis=1, keepdims=True)
        is_wide = np.exp(-(weights * np.log(np.maximum(weights, 1e-300))).sum(axis=1, keepdims=True)) > perplexity
        low, high = np.where(is_wide, width, low), np.where(is_wide, high, width)
        width = np.where(np.isfinite(high), (low + high) / 2, np.minimum(2 * width, 1e9))
    joint = np.zeros((len(rows), len(rows)), dtype=np.float32)
    np.put_along_axis(joint, index, weights.astype(np.float32), axis=1)
    return (joint + joint.T) / np.float32(2 * len(rows))


def _gaussian(distances: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
    """Return the weights of each row's nearest, (n, k), by a Gaussian of their distances, (n, k)."""
    squared = distances**2
    width = np.maximum(squared.mean(axis=1, keepdims=True), 1e-12)
    return np.asarray(np.exp((squared.min(axis=1, keepdims=True) - squared) / width * squared.shape[1]))
