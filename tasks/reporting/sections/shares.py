"""Show the quality, the lengths and the groups of what was eligible beside those of what is selected."""

from collections.abc import Sequence

import numpy as np

from fineweb_mask.models.analysis.groups import decile_edges, group_of
from fineweb_mask.tasks.reporting import charts
from fineweb_mask.tasks.reporting.breakdown import Breakdown
from fineweb_mask.tasks.reporting.charts import Share
from fineweb_mask.tasks.reporting.geometry import Diversity
from fineweb_mask.tasks.reporting.page import Figure, Section

GROUPS = {
    "dump": "dump",
    "domain": "url domain",
    "n_chars": "length decile (characters)",
    "quality": "quality decile (standard deviations)",
    "language_score": "language score decile",
}
TINY = 0.01  # share of the eligible documents below which a domain is not drawn by itself


def distributions(breakdown: Breakdown) -> Section:
    """Show the distributions of quality and length before and after the selection; not that of one value."""
    drawn = {"quality": "quality (standard deviations)", "n_chars": "length (characters, logarithmic)"}
    figures = []
    for column, x_label in drawn.items():
        name, found = x_label.split()[0], breakdown.histograms[column]
        if np.count_nonzero(found.before) < 2:
            continue
        counts, title = {"eligible": found.before, "selected": found.after}, f"{name.capitalize()} before and after"
        text = "" if found.medians is None else " Median: {:,.4g} before, {:,.4g} after.".format(*found.medians)
        chart = charts.histogram(title, x_label, found.edges, counts, logarithmic=column == "n_chars")
        caption = f"{breakdown.counted}{text} The outermost bars include all values beyond them."
        figures.append(Figure(name, chart, f"{title}.{text}", caption))
    return Section("Quality and length", figures=figures)


def retention(breakdown: Breakdown, measured: Diversity | None = None) -> Section:
    """Show which share of each group is selected; not of a column of one group; tiny domains are summed up."""
    figures: list[Figure] = []
    for name, rows in [*breakdown.groups.items(), *breakdown.deciles.items()]:
        missing = breakdown.missing.get(name, Share("", 0, 0))
        shares = [*rows, missing] if missing.documents else rows
        if name == "domain":
            shares = _without_tiny(shares)
        if sum(row.documents > 0 for row in shares) < 2:
            continue
        what = GROUPS.get(name, name)
        file = f"retention-{name.replace('_', '-')}" if name in GROUPS else f"retention-by-{len(figures)}"
        why = _explained(rows, breakdown, measured) if name == "quality" else ""
        said = f"{breakdown.counted}{_extremes(shares)}{why}"
        chart = charts.retention(f"Share selected by {what}", shares, group=what)
        figures.append(Figure(file.replace("n-chars", "length"), chart, f"Share selected of each {what}. {said}", said))
    text = "The share of each group's documents that is selected. Dashed: the share over all groups."
    return Section("Share selected by group", [text], figures)


def _without_tiny(rows: Sequence[Share]) -> list[Share]:
    """Return the domains of at least 1% of the documents, and all others as one; nothing if there are none."""
    least = TINY * sum(row.documents for row in rows)
    large = [row for row in rows if row.documents >= least and " " not in row.label]  # as "no url" and "792 others" are
    rest = [row for row in rows if row not in large]
    others = Share("all others", sum(row.documents for row in rest), sum(row.selected for row in rest))
    return [*large, others] if large else []


def _explained(rows: Sequence[Share], breakdown: Breakdown, measured: Diversity | None) -> str:
    """Say why a lower decile of quality keeps clearly more than the best one, if one does."""
    rates = np.array([row.selected / max(row.documents, 1) for row in rows])
    top, most = len(rows) - 1, int(rates.argmax())
    if rates[top] > 0.95 * rates[most]:
        return ""
    said = f" Decile {most + 1} keeps more than the best one: quality is not all that decides."
    if measured is None:
        return said
    eligible = measured.geometry["eligible"]
    edges = decile_edges(breakdown.quality.astype(np.float64))
    decile = group_of(measured.quality[eligible.queries].astype(np.float64), edges)
    near, far = (eligible.nearest[decile == one] for one in (top, most))
    if len(near) and len(far) and near.mean() > far.mean():
        said += (
            f" The best documents are more alike: their nearest neighbours have a mean cosine of {near.mean():.2f}, "
            f"those of decile {most + 1} of {far.mean():.2f}, and of documents that are alike fewer are taken."
        )
    return said


def _extremes(rows: Sequence[Share]) -> str:
    """Name the groups with the highest and the lowest share."""
    rated = sorted((row for row in rows if row.documents), key=lambda row: row.selected / row.documents)
    if len(rated) < 2:
        return ""
    low, high = rated[0], rated[-1]
    return (
        f" Highest share: {high.selected / high.documents:.1%} ({high.label}). "
        f"Lowest: {low.selected / low.documents:.1%} ({low.label})."
    )
