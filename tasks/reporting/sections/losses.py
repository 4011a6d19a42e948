"""Show what every step before the selection drops of each group of documents."""

from collections.abc import Sequence

from fineweb_mask.models.losses import LEAST_DOCUMENTS, OTHER_NAMES, GroupLosses, Wiped, reason_name
from fineweb_mask.tasks.reporting import charts
from fineweb_mask.tasks.reporting.charts import Share
from fineweb_mask.tasks.reporting.page import Column, Figure, Section, Table

STEPS = {"ingest": "dropped by ingest"} | {reason: reason_name(reason) for reason in OTHER_NAMES}
LOSSES = "What each group loses"
LISTED_GROUPS = 200
LISTED_LOSSES = 5  # columns
DRAWN_GROUPS = 15


def group_losses(groups: Sequence[GroupLosses], wiped: Sequence[Wiped]) -> list[Section]:
    """Show what every step before the selection drops of each group; nothing if none drops any."""
    figures: list[Figure] = []
    tables: list[Table] = []
    hurt = {one.by_column for one in wiped}
    columns = dict.fromkeys(group.by_column for group in groups if group.dropped)
    for column in sorted(columns, key=lambda name: name not in hurt)[:LISTED_LOSSES]:
        of_column = [group for group in groups if group.by_column == column]
        of_column.sort(key=lambda group: (group.kept / max(group.documents, 1), -group.documents))
        steps = [step for step in STEPS if any(step in group.dropped for group in of_column)]
        large = [one for one in of_column if one.documents >= LEAST_DOCUMENTS][:DRAWN_GROUPS]
        drawn = [Share(_value(one), one.documents, one.kept) for one in large]
        more = len(of_column) - LISTED_GROUPS
        least = f" Least: {drawn[0].selected / drawn[0].documents:.1%} ({drawn[0].label})." if drawn else ""
        figures.append(
            Figure(
                f"losses-{len(figures)}",
                charts.retention(f"Share that reaches the selection, by {column}", drawn, "kept"),
                alt=f"Share of the source's documents that reaches the selection, of each {column}.",
                caption=f"Of the source's documents. Shown are {len(drawn):,} of {len(of_column):,} groups: those that "
                f"keep least, of {LEAST_DOCUMENTS} documents or more.{least}",
            )
        )
        tables.append(
            Table(
                f"Losses by {column}",
                [
                    Column(column),
                    Column("in the source", "count"),
                    *(Column(STEPS[step], "count") for step in steps),
                    Column("eligible", "count"),
                    Column("share kept", "share"),
                ],
                [
                    [
                        _value(one),
                        one.documents,
                        *(sum(one.dropped.get(step, {}).values()) for step in steps),
                        one.kept,
                        one.kept / max(one.documents, 1),
                    ]
                    for one in of_column[:LISTED_GROUPS]
                ],
                note="" if more <= 0 else f"{more:,} more groups are in the view losses of fineweb-mask sql.",
                wide=True,
            )
        )
    text = ["What each step before the selection drops of each group, from the source on; those that keep least first."]
    if len(columns) > LISTED_LOSSES:
        text.append(f"{len(columns) - LISTED_LOSSES:,} more columns are in the view losses of fineweb-mask sql.")
    return [Section(LOSSES, text, figures, tables)] if figures else []


def _value(group: GroupLosses) -> str:
    return "unknown" if group.value is None else group.value
