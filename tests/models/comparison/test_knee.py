"""The knee of a frontier: where it is known, and where there is none."""

import numpy as np
import pytest

from fineweb_mask.models.comparison.knee import knee


def test_it_is_the_point_farthest_from_the_chord_in_whatever_units():
    angle = np.linspace(0, np.pi / 2, 21)
    quality, diversity = np.sin(angle), np.cos(angle)
    assert knee(quality, diversity) == knee(1000 * quality - 7, 0.001 * diversity - 3) == 10
    x, y = np.sort(np.random.default_rng(0).random((2, 30)))
    x[[0, -1]] = y[[0, -1]] = 0, 1
    assert knee(x, y[::-1]) == int(np.argmax(x + y[::-1]))  # the farthest from the chord


@pytest.mark.parametrize(
    ("x", "y"),
    [
        ([], []),
        ([0, 1], [1, 0]),
        ([0, 0.5, 1], [1, 0.5, 0]),  # straight
        ([0, 0.5, 1], [1, 0.2, 0]),  # every point costs more than it gains
        ([1, 1, 1], [1, 1, 1]),  # nothing is traded
    ],
)
def test_a_curve_without_a_knee(x, y):
    assert knee(x, y) is None
