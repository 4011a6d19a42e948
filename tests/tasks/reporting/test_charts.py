"""Charts: every kind is drawn with hostile names and without data; text is drawn literally."""

import io
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import numpy as np
import psutil
import pytest
from matplotlib.image import imread
from PIL import Image

from fineweb_mask.models.quality.evaluation import evaluate
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
    "bars": lambda names: charts.bars(names[0], "s", [Bar(name, 2.0, 0.5) for name in names], form=str, note=names[1]),
    "lines": lambda names: charts.lines(
        names[0],
        "step",
        "objective",
        [Series(name, [1, 2, 3], [3, 1, 2], marked=[1], labels=names[:3]) for name in names],
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
    "heat map": lambda names: charts.heat_map(
        names[0], "share", names, names, np.where(np.eye(len(names)) > 0, np.nan, 0.5), limits=(0, 1)
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_drawn_with_hostile_names(kind):
    picture: Any = imread(io.BytesIO(KINDS[kind](HOSTILE)))
    height, width = picture.shape[:2]
    assert width == 990
    assert 200 < height < 2_000
    assert (picture[..., :3] == 1).all(axis=2).mean() > 0.3  # white, not transparent
    assert picture[..., :3].min() < 0.5


def test_a_reliability_diagram_is_drawn():
    generator = np.random.default_rng(0)
    positive = generator.random(200) < 0.4
    found = evaluate(np.clip(positive * 0.5 + generator.random(200) * 0.5, 0, 1).astype(np.float32), positive)
    drawn = charts.reliability(found)
    assert imread(io.BytesIO(drawn)).shape[:2] == (660, 600)
    assert charts.reliability(found) == drawn


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
            charts.bars("a title", "x", [Bar("a", 1.0)], form=str)

        with ThreadPoolExecutor(threads) as pool:
            for drawn in [pool.submit(draw) for _ in range(threads)]:
                drawn.result()
        return psutil.Process().num_fds()

    before = opened(1)
    assert opened(4) == before


def test_without_a_background_colours_stay_and_text_can_be_read_in_light_and_dark_mode():
    png = KINDS["bars"](["a", "b", "c"])
    original = np.asarray(Image.open(io.BytesIO(png)).convert("RGB"), dtype=np.float64)
    clear = np.asarray(Image.open(io.BytesIO(charts.on_any_background(png))).convert("RGBA"), dtype=np.float64)
    opacity = clear[..., 3:] / 255
    on_white, on_black = (clear[..., :3] * opacity + 255 * light * (1 - opacity) for light in (1, 0))
    hue = np.ptp(original, axis=2) > charts.GREY_RANGE
    assert hue.any()
    assert np.abs(on_white - original)[hue].max() < 3
    ink = original.sum(axis=2) < 200
    assert ink.any()
    assert contrast(on_white[ink].mean(axis=0), np.full(3, 255.0)) > 3.5
    assert contrast(on_black[ink].mean(axis=0), np.zeros(3)) > 4.5
    assert (opacity[(original == 255).all(axis=2)] == 0).all()


def contrast(one, other):
    """Return the contrast ratio of two sRGB colours, as WCAG 2 defines it."""
    low, high = sorted(
        float(np.where(c <= 0.03928, c / 12.92, ((c + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722])
        for c in (one / 255, other / 255)
    )
    return (high + 0.05) / (low + 0.05)
