"""Charts: every kind is drawn with hostile names and without data; text is drawn literally."""

import io
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import numpy as np
import psutil
import pytest
from matplotlib.image import imread

from fineweb_mask.tasks.reporting import charts
from fineweb_mask.tasks.reporting.charts import Bar, MapLabel, Series, Share, safe

HOSTILE = ["<script>$\\frac{1}{0}$", "\x1b[31mred\x00", "雪🎉\u202egnp", "x" * 500, ""]
NORMAL = np.random.default_rng(0).normal(size=(100, 2))
EDGES = np.linspace(-3, 3, 21)

KINDS = {
    "histogram": lambda names: charts.histogram(
        names[0], names[1], EDGES, {name: np.histogram(NORMAL[:, 0], EDGES)[0] for name in names}
    ),
    "histogram of nothing": lambda names: charts.histogram(
        names[0], names[1], 1 - EDGES[::-1] / 4, {"n": np.zeros(20, dtype=int)}, logarithmic=True
    ),
    "retention": lambda names: charts.retention(names[0], [Share(name, 10, 3) for name in names]),
    "retention of nothing": lambda names: charts.retention(names[0], []),
    "bars": lambda names: charts.bars(
        names[0], "s", [Bar(name, 2.0, name, 0.5) for name in names], note=names[1], level=1.0
    ),
    "lines": lambda names: charts.lines(
        names[0],
        "step",
        "objective",
        [
            *(Series(name, [1, 2, 3], [3, 1, 2], marked=[1], labels=names[:3]) for name in names),
            Series(names[0], [2], [2], names[:1]),
        ],
        levels=dict.fromkeys(names, 4.0),
        note=names[0],
    ),
    "map": lambda names: charts.scatter_map(
        names[0],
        "x",
        "y",
        {**dict.fromkeys(names, NORMAL), "none": np.zeros((0, 2))},
        labels=[MapLabel(0, 0, name) for name in names],
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_drawn_with_hostile_names(kind):
    chart = KINDS[kind](HOSTILE)
    assert all(len(row) == len(chart.numbers.columns) for row in chart.numbers.rows)
    picture: Any = imread(io.BytesIO(chart.png))
    height, width = picture.shape[:2]
    assert width == 990
    assert 200 < height < 2_000
    assert (picture[..., :3] == 1).all(axis=2).mean() > 0.3  # white, not transparent
    assert picture[..., :3].min() < 0.5


def test_a_label_is_one_drawable_line():
    labels = {
        "müller.de пример.рф": "müller.de пример.рф",
        "$x$": r"\$x\$",
        "a\nb\x00\x1b[1m": "a b[1m",
        "\u202eevil": "evil",
        "雪.jp": "□.jp",
        "مثال": "□□□□",
        "x" * 500: "x" * 33 + "…",
    }
    assert {text: safe(text) for text in labels} == labels


def test_threads_that_draw_leave_no_files_open():
    def opened(threads):
        together = Barrier(threads)

        def draw():
            together.wait()
            charts.bars("a title", "x", [Bar("a", 1.0, "1")])

        with ThreadPoolExecutor(threads) as pool:
            for drawn in [pool.submit(draw) for _ in range(threads)]:
                drawn.result()
        return psutil.Process().num_fds()

    before = opened(1)
    assert opened(4) == before


def test_the_numbers_are_those_that_are_drawn():
    kept = charts.retention("kept", [Share("a", 10, 3), Share("b", 0, 0)], group="topic").numbers
    assert [column.label for column in kept.columns] == ["topic", "documents", "selected", "share"]
    assert kept.rows == [["a", 10, 3, 0.3], ["b", 0, 0, 0.0]]
    counts = {"all": np.array([2, 1]), "some": np.array([0, 1])}
    assert charts.histogram("t", "x", np.array([0.0, 1.0, 2.0]), counts).numbers.rows == [(0, 1, 2, 0), (1, 2, 1, 1)]
    drawn = charts.lines("t", "x", "y", [Series("a", [1], [2], ["here"])], levels={"bound": 3.0}).numbers
    assert drawn.rows == [["a", "here", 1, 2], ["bound", "", None, 3.0]]
