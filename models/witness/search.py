"""Search a cube of settings for the least loss: spread out at first, then where a model of the trials expects it.

The model is a Gaussian process with a Matern kernel and noise; the next point has the least of mean - deviation among
many random ones and many near the best (Srinivas et al. 2010, arXiv 0912.3995). Points of the first part are Sobol's.
"""

import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

CANDIDATES = 2_000
NEAR_THE_BEST = 0.08  # deviation of points around the best, in the unit cube


def spread(dimensions: int, seed: int, count: int) -> NDArray[np.float64]:
    """Return points spread evenly over the unit cube, (count, dimensions).

    >>> spread(2, 0, 4).shape
    (4, 2)
    """
    from scipy.stats import qmc

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the balance of a power of 2 does not matter
        return np.asarray(qmc.Sobol(dimensions, rng=seed).random(count), dtype=np.float64)


def next_point(tried: Sequence[NDArray[np.float64]], losses: Sequence[float], seed: int) -> NDArray[np.float64]:
    """Return the point to try after others, (dimensions,).

    Parameters
    ----------
    tried
        Points of the unit cube, (dimensions,) each, at least two.
    losses
        What was measured at each; less is better.
    seed
        Seed of the candidates.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    known, values = np.stack(tried), np.asarray(losses)
    kernel = ConstantKernel(1.0) * Matern(np.full(known.shape[1], 0.5), (0.05, 20.0), nu=2.5) + WhiteKernel(0.1)
    model = GaussianProcessRegressor(kernel, normalize_y=True, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a length at its bound: that setting does not matter
        model.fit(known, values)
    random = np.random.default_rng(seed)
    best = known[values.argmin()]
    near = np.clip(best + random.normal(0, NEAR_THE_BEST, (CANDIDATES, len(best))), 0, 1)
    points = np.concatenate([random.random((CANDIDATES, len(best))), near])
    mean, deviation = model.predict(points, return_std=True)
    return np.asarray(points[(mean - deviation).argmin()], dtype=np.float64)
