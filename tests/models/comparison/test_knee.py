"""The knee of a frontier: where it is known, and where there is none."""

import numpy as np
import pytest

from fineweb_mask.models.comparison.knee import knee


def test_units_and_offsets_do_not_matter():
    angle = np.linspace(0, np.pi / 2, 21)
    quality, diversity = np.sin(angle), np.cos(angle)
    assert knee(quality, diversity) == knee(1000 * quality - 7, 0.001 * diversity - 3) == 10
    assert knee([0, 0.9, 1], [1, 0.95, 0]) == 1  # a corner


def test_it_is_the_point_farthest_from_the_chord():
    dice = np.random.default_rng(0)
    x = np.sort(dice.random(30))
    y = np.sort(dice.random(30))[::-1]
    ends = np.array([[x[0], y[0]], [x[-1], y[-1]]])
    scaled = (np.stack([x, y], axis=1) - ends.min(0)) / np.ptp(ends, axis=0)
    distances = (scaled.sum(1) - 1) / np.sqrt(2)  # from the line through (0, 1) and (1, 0)
    assert knee(x, y) == int(np.argmax(distances))


@pytest.mark.parametrize(
    ("x", "y"),
    [
        ([], []),
        ([1], [1]),
        ([0, 1], [1, 0]),
        ([0, 0.5, 1], [1, 0.5, 0]),  # straight
        ([0, 0.5, 1], [1, 0.2, 0]),  # every point costs more than it gains
        ([1, 1, 1], [1, 1, 1]),  # nothing is traded
        ([0, 0.5, 1], [0, 0.5, 1]),  # both rise
    ],
)
def test_a_curve_without_a_knee(x, y):
    assert knee(x, y) is None
