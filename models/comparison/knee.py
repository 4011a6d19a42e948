"""Find the knee of a frontier: where a little more of one good begins to cost much of the other."""

import numpy as np
from numpy.typing import ArrayLike

STRAIGHT = 1e-3  # of the frontier's range: a curve closer to its chord has no knee


def knee(x: ArrayLike, y: ArrayLike) -> int | None:
    """Find the point of a trade-off curve farthest above the chord between its ends.

    Both axes are scaled to 0..1 between the ends, so units do not matter.
    Source: Satopaa et al., Finding a "Kneedle" in a Haystack (2011), without smoothing.

    Parameters
    ----------
    x, y
        (n,) the two goods at each point; larger is better. The ends of the trade-off come first and last.

    Returns
    -------
    int or None
        The index of the point. None if there is nothing between the ends, the ends do not trade one good for the
        other, or no point is above the chord.

    Examples
    --------
    >>> knee([0, 0.8, 1], [1, 0.7, 0])
    1
    """
    a, b = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if len(a) < 3 or a[-1] <= a[0] or b[-1] >= b[0]:
        return None
    above = (a - a[0]) / (a[-1] - a[0]) + (b - b[-1]) / (b[0] - b[-1]) - 1
    best = int(above.argmax())
    return best if above[best] > STRAIGHT else None
