"""Draw the charts of every page in one style, each with its numbers: a title, axes with units, n, safe colours.

A chart is a PNG on white. In dark mode a page inverts it and keeps the hues; yellow would turn dark, so no chart uses
it. Text from the web is drawn literally: no markup, and a box for each character that the font lacks. Matplotlib is
imported inside the functions, so a run without charts does not load it.
"""

import io
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fineweb_mask.tasks.reporting.page import Chart, Column, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"
COLOURS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY)
"""Okabe and Ito's, without black and yellow (https://jfly.uni-koeln.de/color/)."""
MARKERS = "osD^vPX"
"""One more than colours, so that all look different, in black-and-white print, too."""
INK, QUIET, FAINT = "#1c2733", "#5b6875", "#e3e8ed"
BEFORE = "#9aa5b1"
WIDTH, HEIGHT = 6.6, 3.7  # inches
DOTS = 150  # per inch
PALETTE_COLOURS = 256
LETTER_WIDTH, LINE_HEIGHT = 0.014, 0.042  # of a label inside a chart, in shares of the chart
GAP = 0.018  # between a point and its label, in shares of the chart
LONGEST_LABEL, LONGEST_INSIDE = 34, 24  # characters
REPLACEMENT = "\N{WHITE SQUARE}"

_drawing = ThreadPoolExecutor(1)
"""Draws every chart: matplotlib opens its fonts again in each thread, and keeps them."""


class Share(NamedTuple):
    """How many of a group's documents are selected."""

    label: str
    documents: int
    selected: int


class Bar(NamedTuple):
    """A value, with the half-width of its interval if it is known, and what is written beside it."""

    label: str
    value: float
    text: str
    error: float | None = None
    grey: bool = False


class Series(NamedTuple):
    """A line through points; each may have a label, and some a larger mark."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    labels: Sequence[str] = ()  # one for every point, or none
    marked: Sequence[int] = ()  # indices of points


class MapLabel(NamedTuple):
    """A text at a point of a chart."""

    x: float
    y: float
    label: str


def histogram(
    title: str,
    x_label: str,
    edges: NDArray[np.floating[Any]],  # (bins + 1,)
    counts: Mapping[str, NDArray[np.integer[Any]]],  # name of each population -> (bins,)
    *,
    logarithmic: bool = False,
) -> Chart:
    """Draw the share of each population by bin: the first population filled, the others as outlines."""
    from matplotlib.ticker import LogLocator, NullFormatter

    figure, axes = _figure(title, x_label, "share of documents (%)")
    for index, (name, heights) in enumerate(counts.items()):
        n = int(heights.sum())
        label, shares = f"{safe(name)} (n = {n:,})", 100 * heights / max(n, 1)
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
    _legend(figure, axes)
    columns = [Column(f"{x_label}, from", "number"), Column("to", "number")]
    columns += [Column(f"{name}, documents", "count") for name in counts]
    rows = zip(edges[:-1], edges[1:], *(heights.tolist() for heights in counts.values()), strict=True)
    return Chart(_png(figure), Table(title, columns, list(rows)))


def retention(title: str, shares: Sequence[Share], done: str = "selected", group: str = "group") -> Chart:
    """Draw the share of each group that is selected, in the order of `shares`, and the share over all as a line.

    `done` says what is done with that share, `group` what the groups are.
    """
    documents, selected = sum(row.documents for row in shares), sum(row.selected for row in shares)
    rows = [
        Bar(row.label, 100 * row.selected / max(row.documents, 1), f"{row.selected:,} of {row.documents:,}")
        for row in shares
    ]
    overall, note = 100 * selected / max(documents, 1), f"n = {documents:,} documents"
    drawn = bars(title, f"share of documents {done} (%)", rows, note=note, level=overall)
    columns = [Column(group), Column("documents", "count"), Column(done, "count"), Column("share", "share")]
    numbers = [[*row, row.selected / max(row.documents, 1)] for row in shares]
    return Chart(drawn.png, Table(title, columns, numbers))


def bars(title: str, x_label: str, rows: Sequence[Bar], *, note: str = "", level: float | None = None) -> Chart:
    """Draw a bar for each value, in the order of `rows`, with its interval if it has one, and a level over all."""
    figure, axes = _figure(title, x_label, "", note, height=max(2.0, 0.27 * len(rows) + 1.25))
    has_errors = any(row.error is not None for row in rows)
    drawn = axes.barh(
        range(len(rows)),
        [row.value for row in rows],
        xerr=[row.error or 0 for row in rows] if has_errors else None,
        color=[BEFORE if row.grey else BLUE for row in rows],
        ecolor=INK,
        capsize=3,
        height=0.66,
    )
    texts = [safe(row.text) for row in rows]
    axes.bar_label(drawn, texts, padding=5, fontsize=8, color=QUIET, zorder=4, path_effects=_halo())
    axes.set_yticks(range(len(rows)), _told_apart([row.label for row in rows]))
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.margins(x=0.18)
    if level is not None:
        label = f"all: {level:.1f}%"
        axes.axvline(level, color=VERMILION, linestyle="--", linewidth=1.2, zorder=0.9, label=label)
        axes.set_xlim(0, 1.3 * max([level, 1e-9, *(row.value for row in rows)]))
        _legend(figure, axes, outside=True)
    columns = [Column("of"), Column(x_label, "number"), *([Column("+-", "number")] if has_errors else [])]
    numbers = [[row.label, row.value, row.error][: len(columns)] for row in rows]
    return Chart(_png(figure), Table(title, columns, numbers))


def lines(
    title: str,
    x_label: str,
    y_label: str,
    series: Sequence[Series],
    *,
    levels: Mapping[str, float] | None = None,
    note: str = "",
    height: float = HEIGHT,
) -> Chart:
    """Draw lines with a marker at each point, and dashed levels such as a bound; labels stand where there is room."""
    figure, axes = _figure(title, x_label, y_label, note, height=height)
    axes.grid(color=FAINT)
    for index, one in enumerate(series):
        colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]
        axes.plot(one.x, one.y, color=colour, linewidth=2, marker=marker, markersize=5, label=safe(one.name))
        x, y = ([values[place] for place in one.marked] for values in (one.x, one.y))
        axes.scatter(x, y, s=150, facecolors="none", edgecolors=INK, linewidths=1.7, zorder=4)
    for (name, level), style in zip((levels or {}).items(), ("--", ":", "-.") * len(levels or {}), strict=False):
        colour = VERMILION if style == "--" else QUIET
        axes.axhline(level, color=colour, linestyle=style, linewidth=1.4, label=safe(name))
    axes.margins(0.1)
    labels = [
        MapLabel(one.x[place], one.y[place], one.labels[place])
        for one in sorted(series, key=lambda one: len(one.x))
        for place in dict.fromkeys([*one.marked, *range(len(one.labels))])
    ]
    _write(axes, labels, points=[point for one in series for point in zip(one.x, one.y, strict=True)])
    if len(series) + len(levels or {}) > 1:
        _legend(figure, axes, outside=True)
    columns = [Column("of"), Column("at"), Column(x_label, "number"), Column(y_label, "number")]
    rows: list[list[Any]] = [
        [one.name, one.labels[place] if one.labels else "", x, y]
        for one in series
        for place, (x, y) in enumerate(zip(one.x, one.y, strict=True))
    ]
    rows += [[name, "", None, level] for name, level in (levels or {}).items()]
    return Chart(_png(figure), Table(title, columns, rows))


def scatter_map(
    title: str,
    x_label: str,
    y_label: str,
    populations: Mapping[str, NDArray[np.floating[Any]]],  # name -> (n, 2); later ones on top
    *,
    labels: Sequence[MapLabel] = (),
    note: str = "",
) -> Chart:
    """Draw the points of each population on a map: the first in grey below, the others on top of it."""
    figure, axes = _figure(title, x_label, y_label, note, height=5.4)
    for index, (name, points) in enumerate(populations.items()):
        colour = BEFORE if index == 0 else COLOURS[(index - 1) % len(COLOURS)]
        size = float(np.clip(20_000 / max(len(points), 1), 2, 18))
        label = f"{safe(name)} (n = {len(points):,})"
        axes.scatter(points[:, 0], points[:, 1], s=size, color=colour, alpha=0.45, linewidths=0, label=label)
    _write(axes, labels)
    axes.set_xticks([])
    axes.set_yticks([])
    for handle in _legend(figure, axes, outside=True).legend_handles:
        if handle is not None:
            handle.set_alpha(1)
            handle.set_sizes([30])
    columns = [Column("words"), Column(x_label, "number"), Column(y_label, "number")]
    return Chart(_png(figure), Table(title, columns, [[one.label, one.x, one.y] for one in labels]))


def safe(text: str, longest: int = LONGEST_LABEL) -> str:
    """Return a text as one line that is drawn literally, cut if long, with a box for each character the font lacks."""
    one_line = " ".join(unicodedata.normalize("NFC", text[: 4 * longest]).split())
    plain = "".join(c if ord(c) in _drawable() else REPLACEMENT for c in one_line if c.isprintable())
    if len(plain) > longest:
        plain = plain[: longest - 1] + "…"
    return plain.replace("$", r"\$")


@cache
def _drawable() -> frozenset[int]:
    """Return the code points that the font of the charts has and that are written from left to right."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    charmap = get_font(findfont(FontProperties(family="DejaVu Sans"))).get_charmap()
    return frozenset(
        code for code in charmap if unicodedata.bidirectional(chr(code)) not in {"R", "AL", "RLE", "RLO", "RLI"}
    )


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


def _write(axes: "Axes", labels: Iterable[MapLabel], points: Iterable[tuple[float, float]] | None = None) -> None:
    """Write labels as close to their places as the earlier ones, and the points of the chart, allow.

    With points, a label stands beside its own, or is left out; without, it is centred, or has a line to its place.
    """
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()

    def share(x: float, y: float) -> tuple[float, float]:
        return (x - left) / (right - left), (y - bottom) / (top - bottom)

    taken = [(*share(*point), GAP / 2) for point in points or ()]  # centre, and half the width
    for one in labels:
        if not (text := safe(one.label, LONGEST_INSIDE)):
            continue
        (x, y), half = share(one.x, one.y), LETTER_WIDTH * len(text) / 2
        sides = [half + GAP, -half - GAP] if points is not None else [0.0]
        lines = (0.5, -0.5, 1.1, -1.1, 1.6, -1.6) if points is not None else sorted(range(-12, 13), key=abs)
        near = [(x + aside, y + up * LINE_HEIGHT) for up in lines for aside in sides]
        near = [(min(max(a, half), 1 - half) if points is None else a, b) for a, b in near]
        near = [(a, b) for a, b in near if half <= a <= 1 - half and 0 <= b <= 1]
        free = (
            (a, b)
            for a, b in near
            if not any(abs(b - d) < 0.99 * LINE_HEIGHT and abs(a - c) < half + width for c, d, width in taken)
        )
        if (place := next(free, None if points is not None else (x, y))) is None:
            continue
        taken.append((*place, half))
        line = {"arrowstyle": "-", "color": QUIET, "linewidth": 0.8} if points is None and place[1] != y else None
        axes.annotate(
            text, (one.x, one.y), xytext=place, textcoords="axes fraction", fontsize=8.5, fontweight="bold", color=INK,
            ha="center", va="center", zorder=5, path_effects=_halo(), arrowprops=line,
        )  # fmt: skip


def _halo() -> list[Any]:
    """Return the path effect that keeps a text readable on top of points and lines."""
    from matplotlib.patheffects import withStroke

    return [withStroke(linewidth=3, foreground="white")]


def _figure(title: str, x_label: str, y_label: str, note: str = "", *, height: float = HEIGHT) -> "tuple[Figure, Axes]":
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

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


def _legend(figure: "Figure", axes: "Axes", *, outside: bool = False) -> Any:  # noqa: ANN401 - its handles lack types
    options: dict[str, Any] = {"frameon": False, "fontsize": 9, "labelcolor": INK}
    if outside:
        return figure.legend(*axes.get_legend_handles_labels(), loc="outside lower left", ncols=3, **options)
    return axes.legend(**options)


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
