"""The search finds the least of a function from few noisy trials."""

import numpy as np
import pytest

from fineweb_mask.models.witness.search import next_point, spread


def search(function, dimensions, trials, seed=0):
    points = list(spread(dimensions, seed, 4 * dimensions))
    losses = [function(point) for point in points]
    while len(points) < trials:
        points.append(next_point(points, losses, seed + len(points)))
        losses.append(function(points[-1]))
    return points, losses


@pytest.mark.parametrize("dimensions", [1, 3, 5])
def test_it_comes_close_to_the_least(dimensions):
    best = np.linspace(0.2, 0.8, dimensions)
    points, losses = search(lambda point: float(((point - best) ** 2).sum()), dimensions, 4 * dimensions + 15)
    random = np.random.default_rng(0).random((len(points), dimensions))
    assert min(losses) < 0.02
    assert min(losses) < min(((random - best) ** 2).sum(1))


def test_noise_does_not_hide_a_large_effect():
    random = np.random.default_rng(1)
    points, losses = search(lambda point: float((point[0] - 0.3) ** 2 + random.normal(0, 0.01)), 3, 40)
    assert abs(points[int(np.argmin(losses))][0] - 0.3) < 0.2


def test_points_are_of_the_cube_and_repeat_with_the_seed():
    first, second = (search(lambda point: float(point.sum()), 2, 14, seed=3)[0] for _ in range(2))
    assert np.array_equal(first, second)
    assert (np.stack(first) >= 0).all()
    assert (np.stack(first) <= 1).all()
