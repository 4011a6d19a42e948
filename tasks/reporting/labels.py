"""Write texts on charts: literally, and beside each other where they would overlap."""

import unicodedata
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, QUIET = "#1c2733", "#5b6875"
LABEL_SIZE = 8.5  # points, of a label inside a chart
LETTER_WIDTH, LINE_HEIGHT = 0.014, 0.042  # of such a label, in shares of the chart
GAP = 0.018  # between a point and its label, in shares of the chart
LONGEST_LABEL, LONGEST_MAP_LABEL = 34, 24  # characters
REPLACEMENT = "\N{WHITE SQUARE}"


class Series(NamedTuple):
    """A line through points; some points may be marked or labelled."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    marked: Sequence[int] = ()  # indices of the points with a larger mark
    labels: Sequence[str] = ()  # one for every point, or none


class MapLabel(NamedTuple):
    """A text at a point of a chart."""

    x: float
    y: float
    label: str


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


Box = tuple[float, float, float]  # centre of a label, x and y, and half its width, in shares of the chart


def label_points(axes: "Axes", points: Sequence[MapLabel], curve: Series | None) -> None:
    """Label all points, then as many of the curve as there is room for beside points: marked ones and ends first."""
    labels = [(point, True) for point in points]
    if curve is not None and curve.labels:
        last = len(curve.labels) - 1
        order = sorted(range(last + 1), key=lambda index: (index not in curve.marked, index not in {0, last}, index))
        labels += [(MapLabel(curve.x[index], curve.y[index], curve.labels[index]), False) for index in order]
    taken = [(*_box(axes, label)[:2], GAP / 2) for label, _ in labels]
    for label, required in labels:
        x, y, half = _box(axes, label)
        beside = [(side * (half + GAP), line) for line in (0.5, -0.5, 1.5, -1.5) for side in (1, -1)]
        near = [(x + right, y + up * LINE_HEIGHT, half) for right, up in (*beside, (0, 1.1), (0, -1.1))]
        near = [box for box in near if half < box[0] < 1 - half and 0 < box[1] < 1]
        free = [box for box in near if not _overlaps(box, taken)]
        if free or required:
            taken.append((free or near or [(x, y, half)])[0])
            _write_label(axes, label, taken[-1], bold=required)


def label_map(axes: "Axes", labels: Sequence[MapLabel]) -> None:
    """Write each label as close above or below its point as the earlier ones allow, with a line to a distant point."""
    taken: list[Box] = []
    for label in (label for label in labels if safe(label.label)):
        x, y, half = _box(axes, label)
        x = min(max(x, half), 1 - half)
        lines = sorted((y + LINE_HEIGHT * step for step in range(-12, 13)), key=lambda line: abs(line - y))
        free = (line for line in lines if 0 <= line <= 1 and not _overlaps((x, line, half), taken))
        taken.append((x, next(free, y), half))
        _write_label(axes, label, taken[-1], line=taken[-1][1] != y)


def _box(axes: "Axes", label: MapLabel) -> Box:
    """Return the box of a label that is centred on its point."""
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    half = LETTER_WIDTH * len(safe(label.label, LONGEST_MAP_LABEL)) / 2
    return (label.x - left) / (right - left), (label.y - bottom) / (top - bottom), half


def _overlaps(box: Box, taken: Sequence[Box]) -> bool:
    x, y, half = box
    return any(
        abs(y - other_y) < 0.99 * LINE_HEIGHT and abs(x - other_x) < half + width for other_x, other_y, width in taken
    )


def _write_label(axes: "Axes", label: MapLabel, box: Box, *, bold: bool = True, line: bool = False) -> None:
    axes.annotate(
        safe(label.label, LONGEST_MAP_LABEL), (label.x, label.y), xytext=box[:2], textcoords="axes fraction",
        fontsize=LABEL_SIZE, fontweight="bold" if bold else "normal", color=INK, ha="center", va="center", zorder=5,
        path_effects=halo(), arrowprops={"arrowstyle": "-", "color": QUIET, "linewidth": 0.8} if line else None,
    )  # fmt: skip


def halo() -> list[Any]:
    """Return the path effect that keeps a text readable on top of points and lines."""
    from matplotlib.patheffects import withStroke

    return [withStroke(linewidth=3, foreground="white")]
