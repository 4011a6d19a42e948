"""Lay vectors out on a plane so that neighbours stay neighbours: t-SNE of a sample, and every other row beside it."""

import numpy as np
from numpy.typing import NDArray

from fineweb_mask.models.analysis.vectors import Unit, principal_axes
from fineweb_mask.models.runtime.stopping import raise_if_stopped

DIMENSIONS = 50
"""Principal components that distances are measured in."""
PERPLEXITY, ITERATIONS = 30.0, 500
MOST = 5_000
"""Rows that t-SNE lays out: about 12 seconds of one core."""
NEAREST = 5
"""Rows of the sample that say where another row is placed."""
SPREAD = 0.3
"""How far a row is moved from there, in median distances between neighbours of the sample: equal rows stay visible."""
FEWEST = 10
"""Rows below which neighbours mean nothing."""


def lay_out(unit: Unit, seed: int = 0) -> NDArray[np.float32]:
    """Return a place on the plane for every row, (n, 2) float32.

    Parameters
    ----------
    unit
        Unit rows, (n, d) float32.
    seed
        Of the sample, and of what is moved.

    Notes
    -----
    A row outside of the sample is placed at the mean of its nearest rows in it, by their distance, as openTSNE does it
    (Poličar et al., Journal of Statistical Software 2024).

    Examples
    --------
    >>> import numpy as np
    >>> topics = np.eye(3, 8, dtype=np.float32).repeat(40, axis=0)
    >>> places = lay_out(topics + 0.01 * np.random.default_rng(0).random((120, 8), dtype=np.float32))
    >>> places.shape
    (120, 2)
    """
    from sklearn.manifold import TSNE
    from sklearn.neighbors import KNeighborsRegressor, NearestNeighbors
    from sklearn.utils.extmath import randomized_svd
    from threadpoolctl import threadpool_limits

    if unit.shape[1] < 2:
        unit = np.pad(unit, ((0, 0), (0, 2 - unit.shape[1])))
    if len(unit) < FEWEST or not np.ptp(unit, axis=0).any():
        return principal_axes(unit, 2).project(unit).astype(np.float32)
    left, scale, _ = randomized_svd(unit - unit.mean(axis=0), min(DIMENSIONS, *unit.shape), random_state=seed)
    short = (left * scale).astype(np.float32)
    generator = np.random.default_rng(seed)
    sample = np.sort(generator.choice(len(unit), size=min(MOST, len(unit)), replace=False))
    others = np.setdiff1d(np.arange(len(unit)), sample, assume_unique=True)
    places = np.empty((len(unit), 2), dtype=np.float32)
    perplexity = min(PERPLEXITY, (len(sample) - 1) / 3)
    raise_if_stopped()
    with threadpool_limits(1):  # several threads add up in any order, and the smallest difference grows
        t_sne = TSNE(perplexity=perplexity, max_iter=ITERATIONS, random_state=seed)
        places[sample] = t_sne.fit_transform(short[sample])
    raise_if_stopped()
    if len(others):
        beside = KNeighborsRegressor(NEAREST, weights="distance", n_jobs=-1).fit(short[sample], places[sample])
        apart = np.median(NearestNeighbors(n_neighbors=1).fit(places[sample]).kneighbors()[0])
        places[others] = beside.predict(short[others]) + generator.normal(0, SPREAD * apart, size=(len(others), 2))
    return places
