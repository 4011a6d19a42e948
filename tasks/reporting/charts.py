"""Draw the charts of every page in one style: a title, axes with units, n, colours for colour-blind readers.

A chart is a PNG on white. In dark mode a page inverts it and keeps the hues; yellow would turn dark, so no chart uses
it. `on_any_background` makes a chart readable in both modes, for places that cannot invert it. Text from the web is
drawn literally: no markup, and a box for each character that the font lacks. Matplotlib is imported inside the
functions, so a run without charts does not load it.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fineweb_mask.tasks.reporting.labels import (
    INK,
    LONGEST_LABEL,
    QUIET,
    MapLabel,
    Series,
    halo,
    label_map,
    label_points,
    safe,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fineweb_mask.models.quality.evaluation import Evaluation

BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"
COLOURS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY)
"""Okabe and Ito's, without black and yellow (https://jfly.uni-koeln.de/color/)."""
MARKERS = "osD^vP"
"""One for each colour, so that lines differ in black-and-white print, too."""
BEFORE, AFTER = "#9aa5b1", BLUE
FAINT = "#e3e8ed"
MIDDLE = (118, 128, 140)
"""A grey with a contrast of 4 to white and of 5 to black."""
GREY_RANGE = 40
"""Most that red, green and blue of a grey differ; those of the inks differ by 26, of the colours by 83 and more."""
WIDTH, HEIGHT = 6.6, 3.7  # inches
DOTS = 150  # per inch
PALETTE_COLOURS = 256

_drawing = ThreadPoolExecutor(1)
"""Draws every chart: matplotlib opens its fonts again in each thread, and keeps them."""
MOST_NUMBERED = 12
"""Columns of a matrix whose cells are wide enough for their values."""


class Share(NamedTuple):
    """How many of a group's documents are selected."""

    label: str
    documents: int
    selected: int


class Bar(NamedTuple):
    """A value, and the half-width of its interval if it is known."""

    label: str
    value: float
    error: float | None = None
    grey: bool = False


def histogram(
    title: str,
    x_label: str,
    edges: NDArray[np.floating[Any]],  # (bins + 1,)
    counts: Mapping[str, NDArray[np.integer[Any]]],  # name of each population -> (bins,)
    *,
    logarithmic: bool = False,
) -> bytes:
    """Draw the share of each population by bin: the first population filled, the others as outlines."""
    from matplotlib.ticker import LogLocator, NullFormatter

    figure, axes = _figure(title, x_label, "share of documents (%)")
    for index, (name, heights) in enumerate(counts.items()):
        n = int(heights.sum())
        label = f"{safe(name)} (n = {n:,})"
        shares = 100 * heights / max(n, 1)
        if index == 0:
            axes.stairs(shares, edges, fill=True, color=BEFORE, alpha=0.75, label=label)
        else:
            axes.stairs(shares, edges, color=COLOURS[(index - 1) % len(COLOURS)], linewidth=2, label=label)
    if logarithmic:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:,.6g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_ylim(bottom=0)
    _legend(axes)
    return _png(figure)


def retention(title: str, rows: Sequence[Share], done: str = "selected") -> bytes:
    """Draw the share of each group that is selected, in the order of `rows`, and the share over all as a line.

    `done` says what is done with that share.
    """
    documents, selected = sum(row.documents for row in rows), sum(row.selected for row in rows)
    overall = 100 * selected / max(documents, 1)
    note = f"n = {documents:,} documents"
    figure, axes = _figure(title, f"share of documents {done} (%)", "", note, rows=len(rows))
    shares = [100 * row.selected / max(row.documents, 1) for row in rows]
    bars = axes.barh(range(len(rows)), shares, color=AFTER, height=0.66)
    labels = [f"{row.selected:,} of {row.documents:,}" for row in rows]
    axes.bar_label(bars, labels, padding=4, fontsize=8, color=QUIET, zorder=4, path_effects=halo())
    axes.axvline(overall, color=VERMILION, linestyle="--", linewidth=1.2, zorder=0.9, label=f"all: {overall:.1f}%")
    _name_rows(axes, [row.label for row in rows])
    axes.set_xlim(0, 1.3 * max([*shares, overall, 1e-9]))
    _legend(axes, outside=True)
    return _png(figure)


def bars(title: str, x_label: str, rows: Sequence[Bar], *, form: Callable[[float], str], note: str = "") -> bytes:
    """Draw a bar for each value, in the order of `rows`, with its interval if it has one."""
    figure, axes = _figure(title, x_label, "", note, rows=len(rows))
    errors = [row.error or 0 for row in rows] if any(row.error is not None for row in rows) else None
    drawn = axes.barh(
        range(len(rows)),
        [row.value for row in rows],
        xerr=errors,
        color=[BEFORE if row.grey else AFTER for row in rows],
        ecolor=INK,
        capsize=3,
        height=0.66,
    )
    axes.bar_label(drawn, [form(row.value) for row in rows], padding=6, fontsize=8, color=QUIET)
    _name_rows(axes, [row.label for row in rows])
    axes.margins(x=0.18)
    return _png(figure)


def lines(
    title: str,
    x_label: str,
    y_label: str,
    series: Sequence[Series],
    *,
    levels: Mapping[str, float] | None = None,
    note: str = "",
) -> bytes:
    """Draw lines with a marker at each point, and dashed levels such as a bound."""
    figure, axes = _figure(title, x_label, y_label, note)
    axes.grid(axis="y", color=FAINT)
    for index, one in enumerate(series):
        colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]
        axes.plot(one.x, one.y, color=colour, linewidth=2, marker=marker, markersize=4, label=safe(one.name))
        if one.marked:
            x, y = [one.x[index] for index in one.marked], [one.y[index] for index in one.marked]
            axes.scatter(x, y, s=110, facecolors="none", edgecolors=INK, linewidths=1.6, zorder=4)
        for x_at, y_at, label in zip(one.x, one.y, one.labels, strict=False):
            axes.annotate(
                safe(label), (x_at, y_at), xytext=(6, 5), textcoords="offset points", fontsize=8, color=QUIET,
                path_effects=halo(),
            )  # fmt: skip
    for (name, level), style in zip((levels or {}).items(), ("--", ":", "-.") * len(levels or {}), strict=False):
        colour = VERMILION if style == "--" else QUIET
        axes.axhline(level, color=colour, linestyle=style, linewidth=1.4, label=safe(name))
    axes.margins(0.06)
    if len(series) + len(levels or {}) > 1:
        _legend(axes, outside=True)
    return _png(figure)


def trade_off(
    title: str,
    x_label: str,
    y_label: str,
    points: Sequence[MapLabel],
    *,
    curve: Series | None = None,
    note: str = "",
) -> bytes:
    """Draw labelled points of a trade-off between x and y, and optionally a curve."""
    figure, axes = _figure(title, x_label, y_label, note, height=4.6)
    axes.grid(color=FAINT)
    if curve is not None:
        axes.plot(curve.x, curve.y, color=BLUE, linewidth=2, marker="o", markersize=5, label=safe(curve.name))
        for index in curve.marked:
            axes.scatter(
                curve.x[index], curve.y[index], s=170, facecolors="none", edgecolors=INK, linewidths=1.8, zorder=4,
                label=f"recommended: {safe(curve.labels[index])}",
            )  # fmt: skip
    for index, point in enumerate(points, start=curve is not None):
        colour, marker = COLOURS[index % len(COLOURS)], (MARKERS + "X")[index % (len(MARKERS) + 1)]
        axes.scatter(point.x, point.y, s=70, color=colour, marker=marker, zorder=3, edgecolors="white", linewidths=0.8)
    axes.margins(0.12)
    label_points(axes, points, curve)
    if curve is not None:
        _legend(axes, outside=True)
    return _png(figure)


def scatter_map(
    title: str,
    x_label: str,
    y_label: str,
    populations: Mapping[str, NDArray[np.floating[Any]]],  # name -> (n, 2); later ones on top
    *,
    labels: Sequence[MapLabel] = (),
    note: str = "",
) -> bytes:
    """Draw the points of each population on a map: the first in grey below, the others on top of it."""
    figure, axes = _figure(title, x_label, y_label, note, height=5.4)
    for index, (name, points) in enumerate(populations.items()):
        colour = BEFORE if index == 0 else COLOURS[(index - 1) % len(COLOURS)]
        size = float(np.clip(20_000 / max(len(points), 1), 2, 18))
        label = f"{safe(name)} (n = {len(points):,})"
        axes.scatter(points[:, 0], points[:, 1], s=size, color=colour, alpha=0.45, linewidths=0, label=label)
    label_map(axes, labels)
    axes.set_xticks([])
    axes.set_yticks([])
    for handle in _legend(axes, outside=True).legend_handles:
        if handle is not None:
            handle.set_alpha(1)
            handle.set_sizes([30])
    return _png(figure)


def heat_map(
    title: str,
    value_label: str,
    rows: Sequence[str],
    columns: Sequence[str],
    values: NDArray[np.floating[Any]],  # (rows, columns); NaN is left blank
    *,
    limits: tuple[float, float] | None = None,
    note: str = "",
    form: str = "{:.2f}",
) -> bytes:
    """Draw a matrix, with its values in the cells where they fit."""
    figure, axes = _figure(title, "", "", note, height=max(2.8, 0.42 * len(rows) + 1.7))
    low, high = limits or (float(np.nanmin(values)), float(np.nanmax(values)))
    image = axes.imshow(values, cmap="Blues", vmin=low, vmax=high, aspect="auto")
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value) and len(columns) <= MOST_NUMBERED:
            colour = INK if (value - low) / max(high - low, 1e-12) < 0.55 else "white"
            axes.text(column, row, form.format(value), ha="center", va="center", fontsize=8, color=colour)
    _name_rows(axes, rows, inverted=False)
    turned = 30 if len(columns) <= MOST_NUMBERED else 60
    axes.set_xticks(range(len(columns)), [safe(name) for name in columns], rotation=turned, ha="right")
    axes.spines[:].set_visible(False)
    figure.colorbar(image, ax=axes, label=safe(value_label, 60)).outline.set_visible(False)
    return _png(figure)


def reliability(evaluation: "Evaluation") -> bytes:
    """Draw a reliability diagram, the share of positives against the mean score, above a histogram of the scores."""
    from matplotlib.figure import Figure

    figure, stream = Figure(figsize=(5, 5.5), layout="constrained"), io.BytesIO()
    top, bottom = figure.subplots(2, 1, height_ratios=[3, 1], sharex=True)
    bins = evaluation.reliability
    top.plot([0, 1], [0, 1], color=BEFORE, linestyle="--", label="perfectly calibrated")
    top.plot([one.mean_score for one in bins], [one.positive_share for one in bins], "o-", color=BLUE, label="held out")
    top.set(ylabel="share of positives", ylim=(-0.02, 1.02), xlim=(0, 1))
    top.set_title(f"ROC-AUC {evaluation.roc_auc:.4f}, {evaluation.documents:,} held-out texts")
    top.legend(loc="upper left", frameon=False)
    widths = [one.high - one.low for one in bins]
    bottom.bar([one.low for one in bins], [one.documents for one in bins], widths, align="edge", color=BLUE)
    bottom.set(xlabel="score (probability of the positive label)", ylabel="texts")
    _drawing.submit(figure.savefig, stream, format="png", dpi=120, metadata={"Software": None}).result()
    return stream.getvalue()


def _figure(
    title: str, x_label: str, y_label: str, note: str = "", *, height: float = HEIGHT, rows: int | None = None
) -> "tuple[Figure, Axes]":
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    if rows is not None:
        height = max(2.0, 0.27 * rows + 1.25)
    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08)  # inches
    figure = Figure(figsize=(WIDTH, height), dpi=DOTS, layout=layout, facecolor="white")
    axes = figure.subplots()
    axes.set_title(safe(title, 80), loc="left", fontsize=11.5, fontweight="bold", color=INK, pad=20 if note else 8)
    if note:
        axes.annotate(
            safe(note, 110), (0, 1), xytext=(0, 6), xycoords="axes fraction", textcoords="offset points", fontsize=9,
            color=QUIET,
        )  # fmt: skip
    axes.set_xlabel(safe(x_label, 80), color=INK)
    axes.set_ylabel(safe(y_label, 60), color=INK)
    axes.tick_params(colors=QUIET, labelcolor=INK, labelsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(QUIET)
    axes.set_axisbelow(True)
    axes.xaxis.set_major_formatter("{x:,.6g}")
    axes.yaxis.set_major_formatter("{x:,.6g}")
    return figure, axes


def _told_apart(labels: Sequence[str]) -> list[str]:
    """Return labels as they are drawn; long ones that begin alike, as paths do, are cut in their middle.

    >>> _told_apart(["a/path/with/many/folders/and/at/the/end/one", "a/path/with/many/folders/and/at/the/end/two", "b"])
    ['a/path/with/many…d/at/the/end/one', 'a/path/with/many…d/at/the/end/two', 'b']
    """
    cut = [safe(label) for label in labels]
    return [
        safe(f"{label[:16]}…{label[-16:]}") if cut.count(one) > 1 and len(label) > LONGEST_LABEL else one
        for label, one in zip(labels, cut, strict=True)
    ]


def _name_rows(axes: "Axes", labels: Sequence[str], *, inverted: bool = True) -> None:
    axes.set_yticks(range(len(labels)), _told_apart(labels))
    axes.tick_params(axis="y", length=0)
    if inverted:
        axes.spines["left"].set_visible(False)
        axes.set_ylim(len(labels) - 0.4, -0.6)


def on_any_background(png: bytes) -> bytes:
    """Return a chart whose white is transparent and whose black and grey can be read on white and on black.

    Only the palette changes: every colour becomes the one that gives itself again on white, as transparent as possible,
    and what has no hue becomes `MIDDLE`, as opaque as it was dark.
    """
    from PIL import Image

    image: Image.Image = Image.open(io.BytesIO(png))
    if image.mode != "P":
        image = image.convert("RGB").quantize(PALETTE_COLOURS, dither=Image.Dither.NONE)
    palette = np.asarray(image.getpalette("RGB"), dtype=np.float64).reshape(-1, 3)
    opacity = (255 - palette.min(axis=1, keepdims=True)) / 255
    colours = 255 - (255 - palette) / np.maximum(opacity, 1 / 255)
    grey = np.ptp(palette, axis=1) <= GREY_RANGE
    colours[grey] = MIDDLE
    opacity[grey] = np.minimum(opacity[grey] * 255 / (255 - min(MIDDLE)), 1)
    image.putpalette(colours.round().clip(0, 255).astype(np.uint8).tobytes(), "RGB")
    stream = io.BytesIO()
    transparency = (opacity[:, 0] * 255).round().astype(np.uint8).tobytes()
    image.save(stream, format="png", transparency=transparency)
    return stream.getvalue()


def _legend(axes: "Axes", *, outside: bool = False) -> Any:  # noqa: ANN401 - matplotlib's own type lacks its handles'
    if not outside:
        return axes.legend(frameon=False, fontsize=9, labelcolor=INK)
    return axes.figure.legend(
        *axes.get_legend_handles_labels(), loc="outside lower left", frameon=False, fontsize=9, labelcolor=INK, ncols=3
    )


def _png(figure: "Figure") -> bytes:
    """Return the figure as a PNG with a palette: it looks the same in a third of the bytes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    stream = io.BytesIO()
    canvas: Any = FigureCanvasAgg(figure)  # its methods have no types
    _drawing.submit(canvas.draw).result()  # once; `savefig` would draw for its layout and for its pixels
    image = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    image.quantize(PALETTE_COLOURS, dither=Image.Dither.NONE).save(stream, format="png")
    return stream.getvalue()
