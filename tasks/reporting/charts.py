"""Draw the charts of every page in one style, each with its numbers: a title, axes with units, n, safe colours.

A chart is a PNG on white. In dark mode a page inverts it and keeps the hues; yellow would turn dark, so no chart uses
it. Matplotlib is imported inside the functions, so a run without charts does not load it.
"""

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fineweb_mask.tasks.reporting.page import Column, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Okabe and Ito's, without black and yellow (https://jfly.uni-koeln.de/color/)."""
MARKERS = "osD^vPX"
"""One more than colours, so that all look different, in black-and-white print, too."""
INK, QUIET, FAINT = "#1c2733", "#5b6875", "#e3e8ed"
BEFORE = "#9aa5b1"
WIDTH = 6.6  # inches
DOTS = 150  # per inch
LONGEST = 34  # characters of a name
BINS = 40


class Histogram(NamedTuple):
    """The numbers of the documents before and after a selection, all finite, which are drawn over one axis."""

    x_label: str
    eligible: NDArray[np.floating[Any]]
    selected: NDArray[np.floating[Any]]
    is_logarithmic: bool = False


class Series(NamedTuple):
    """A line through points; each may have a label, and some a larger mark."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    labels: Sequence[str] = ()  # one for every point, or none
    marked: Sequence[int] = ()  # indices of points


def histograms(title: str, panels: Sequence[Histogram]) -> tuple[bytes, Table]:
    """Draw the share of documents by bin, a panel below the other; the outermost bins hold all beyond them."""
    from matplotlib.ticker import LogLocator, NullFormatter

    figure, every = _figure(title, len(panels), height=0.6 + 2.6 * len(panels))
    styles: list[dict[str, Any]] = [
        {"fill": True, "color": BEFORE, "alpha": 0.75},
        {"color": COLOURS[0], "linewidth": 2},
    ]
    rows: list[list[Any]] = []
    for panel, axes in zip(panels, every, strict=True):
        edges = _edges(panel)
        drawn = {"eligible": panel.eligible, "selected": panel.selected}
        counts = [np.histogram(np.clip(one, edges[0], edges[-1]), edges)[0] for one in drawn.values()]
        for name, heights, style in zip(drawn, counts, styles, strict=True):
            n = int(heights.sum())
            axes.stairs(100 * heights / max(n, 1), edges, label=f"{name} (n = {n:,})", **style)
        axes.set_xlabel(panel.x_label, color=INK)
        axes.set_ylabel("share of documents (%)", color=INK)
        if panel.is_logarithmic:
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.xaxis.set_major_formatter("{x:,.6g}")
            axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False, fontsize=9, labelcolor=INK)
        rows += [
            [panel.x_label, *row] for row in zip(edges[:-1], edges[1:], *(one.tolist() for one in counts), strict=True)
        ]
    columns = [Column("of"), Column("from", "number"), Column("to", "number")]
    columns += [Column(name, "count") for name in ("eligible", "selected")]
    return _png(figure), Table(title, columns, rows)


def _edges(panel: Histogram) -> NDArray[np.float64]:
    """Return the edges of the bins, (bins + 1,), between which nearly all numbers are."""
    low, high = np.quantile(np.concatenate([panel.eligible, panel.selected]), [0.001, 0.999])
    if panel.is_logarithmic:
        return np.geomspace(max(low, 1), max(high, 2 * max(low, 1)), BINS + 1)
    return np.linspace(low, max(high, low + 1e-6), BINS + 1)


def lines(title: str, x_label: str, y_label: str, series: Sequence[Series]) -> tuple[bytes, Table]:
    """Draw lines with a marker at each point, labels beside them."""
    figure, [axes] = _figure(title, 1, height=4.8)
    axes.set_xlabel(x_label, color=INK)
    axes.set_ylabel(y_label, color=INK)
    axes.grid(color=FAINT)
    for index, one in enumerate(series):
        colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]
        axes.plot(one.x, one.y, color=colour, linewidth=2, marker=marker, markersize=5, label=_shown(one.name))
        x, y = ([values[place] for place in one.marked] for values in (one.x, one.y))
        axes.scatter(x, y, s=150, facecolors="none", edgecolors=INK, linewidths=1.7, zorder=4)
        for point, label in zip(zip(one.x, one.y, strict=True), one.labels, strict=False):
            axes.annotate(label, point, xytext=(6, 6), textcoords="offset points", fontsize=8.5, color=INK)
    axes.margins(0.1)
    figure.legend(loc="outside lower left", ncols=3, frameon=False, fontsize=9, labelcolor=INK)
    columns = [Column("of"), Column("at"), Column(x_label, "number"), Column(y_label, "number")]
    rows: list[list[Any]] = [
        [one.name, one.labels[place] if one.labels else "", x, y]
        for one in series
        for place, (x, y) in enumerate(zip(one.x, one.y, strict=True))
    ]
    return _png(figure), Table(title, columns, rows)


def _shown(name: str) -> str:
    """Return a name as it is drawn: cut if it is long, and without mathematics."""
    cut = name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"
    return cut.replace("$", r"\$")


def _figure(title: str, panels: int, *, height: float) -> "tuple[Figure, list[Axes]]":
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08)  # inches
    figure = Figure(figsize=(WIDTH, height), dpi=DOTS, layout=layout, facecolor="white")
    figure.suptitle(title, x=0.01, ha="left", fontsize=11.5, fontweight="bold", color=INK)
    every = list(figure.subplots(panels, squeeze=False)[:, 0])
    for axes in every:
        axes.tick_params(colors=QUIET, labelcolor=INK, labelsize=9)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(QUIET)
        axes.set_axisbelow(True)
        axes.xaxis.set_major_formatter("{x:,.6g}")
        axes.yaxis.set_major_formatter("{x:,.6g}")
    return figure, every


def _png(figure: "Figure") -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    stream = io.BytesIO()
    canvas: Any = FigureCanvasAgg(figure)  # its methods have no types
    canvas.print_png(stream)  # `savefig` would draw twice: for its layout and for its pixels
    return stream.getvalue()
