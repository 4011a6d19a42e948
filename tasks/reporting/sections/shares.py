"""Show the quality, the lengths and the groups of what was eligible beside those of what is selected."""

from collections.abc import Sequence

from fineweb_mask.tasks.reporting import charts
from fineweb_mask.tasks.reporting.breakdown import Breakdown, Distribution
from fineweb_mask.tasks.reporting.charts import Share
from fineweb_mask.tasks.reporting.page import Column, Figure, Section, Table

GROUPS = {
    "dump": "dump",
    "domain": "url domain",
    "n_chars": "length decile (characters)",
    "quality": "quality decile (standard deviations)",
    "language_score": "language score decile",
}


def distributions(breakdown: Breakdown) -> Section:
    """Show the distributions of quality and length before and after the selection."""
    quality, length = breakdown.histograms["quality"], breakdown.histograms["n_chars"]
    return Section(
        "Quality and length",
        figures=[
            _histogram("quality", "Quality before and after", "quality (standard deviations)", quality),
            _histogram(
                "length", "Length before and after", "length (characters, logarithmic)", length, logarithmic=True
            ),
        ],
    )


def _histogram(name: str, title: str, x_label: str, found: Distribution, *, logarithmic: bool = False) -> Figure:
    counts = {"eligible": found.before, "selected": found.after}
    medians = found.medians()
    text = "" if medians is None else f" Median: {medians[0]:,.4g} before, {medians[1]:,.4g} after."
    return Figure(
        name,
        charts.histogram(title, x_label, found.edges, counts, logarithmic=logarithmic),
        alt=f"{title}.{text}",
        caption=f"All eligible and all selected documents.{text} The outermost bars include all values beyond them.",
    )


def retention(breakdown: Breakdown) -> Section:
    """Show which share of each group is selected."""
    figures: list[Figure] = []
    tables: list[Table] = []
    for name, rows in [*breakdown.groups.items(), *breakdown.deciles.items()]:
        missing = breakdown.missing.get(name, Share("", 0, 0))
        shares = [*rows, missing] if missing.documents else rows
        if not shares:
            continue
        what = GROUPS.get(name, name)
        file = f"retention-{name.replace('_', '-')}" if name in GROUPS else f"retention-by-{len(figures)}"
        figures.append(
            Figure(
                file.replace("n-chars", "length"),
                charts.retention(f"Share selected by {what}", shares),
                alt=f"Share selected of each {what}.",
                caption=_extremes(rows),
            )
        )
        tables.append(
            Table(
                f"By {what}",
                [Column(what), Column("eligible", "count"), Column("selected", "count"), Column("share", "share")],
                [[row.label, row.documents, row.selected, row.selected / max(row.documents, 1)] for row in shares],
            )
        )
    return Section(
        "Share selected by group",
        ["The share of each group's eligible documents that is selected. Dashed: the share over all groups."],
        figures,
        tables,
    )


def _extremes(rows: Sequence[Share]) -> str:
    """Name the groups with the highest and the lowest share."""
    rated = sorted((row for row in rows if row.documents), key=lambda row: row.selected / row.documents)
    if len(rated) < 2:
        return "All eligible documents."
    low, high = rated[0], rated[-1]
    return (
        f"All eligible documents. Highest share: {high.selected / high.documents:.1%} ({high.label}). "
        f"Lowest: {low.selected / low.documents:.1%} ({low.label})."
    )
