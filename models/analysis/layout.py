"""Lay vectors out on a plane so that neighbours stay neighbours: t-SNE."""

import numpy as np
from numpy.typing import NDArray

from fineweb_mask.models.analysis.vectors import Unit
from fineweb_mask.models.runtime.stopping import raise_if_stopped

DIMENSIONS = 50
"""Principal components that distances are measured in."""
PERPLEXITY, ITERATIONS = 30.0, 500
FEWEST = 10
"""Rows below which neighbours mean nothing, and places are random."""


def lay_out(unit: Unit, seed: int = 0) -> NDArray[np.float32]:
    """Return a place on the plane for every unit row (n, d): (n, 2) float32. 10,000 take half a minute of one core.

    Examples
    --------
    >>> import numpy as np
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
