"""Charts: every kind is drawn with any name, with the numbers that it shows."""

import io
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

from fineweb_mask.tasks.reporting.charts import BINS, Histogram, Series, histograms, lines

NAMES = ["<script>$\\frac{1}{0}$", "x" * 500, "", "_hidden"]
NORMAL = np.random.default_rng(0).normal(size=100)

KINDS = {
    "histograms": lambda: histograms("t", [Histogram("a", NORMAL, NORMAL), Histogram("b", NORMAL + 9, NORMAL, True)]),
    "a histogram of nothing that is selected": lambda: histograms("", [Histogram("a", NORMAL, NORMAL[:0])]),
    "lines": lambda: lines(
        "t", "x", "y", [Series(name, [1, 2, 3], [3, 1, 2], marked=[1], labels=["0", "0.5", "1"]) for name in NAMES]
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_drawn_with_any_name(kind):
    png, numbers = KINDS[kind]()
    assert all(len(row) == len(numbers.columns) for row in numbers.rows)
    picture: Any = imread(io.BytesIO(png))
    height, width = picture.shape[:2]
    assert width == 990
    assert 200 < height < 2_000
    assert (picture[..., :3] == 1).all(axis=2).mean() > 0.3  # white, not transparent
    assert picture[..., :3].min() < 0.5


def test_the_numbers_are_those_that_are_drawn():
    few = np.arange(10.0)
    _, numbers = histograms("t", [Histogram("a", NORMAL, few), Histogram("b", few, few)])
    assert [column.label for column in numbers.columns] == ["of", "from", "to", "eligible", "selected"]
    assert [row[0] for row in numbers.rows] == ["a"] * BINS + ["b"] * BINS
    assert [sum(row[place] for row in numbers.rows) for place in (3, 4)] == [110, 20]  # the outermost, too
    _, numbers = lines("t", "x", "y", [Series("a", [1], [2], ["here"])])
    assert numbers.rows == [["a", "here", 1, 2]]
