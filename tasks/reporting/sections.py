"""Build the sections of the report: figures and tables from counts, breakdowns and measures."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fineweb_mask.models.losses import OTHER_NAMES, GroupLosses, Wiped, reason_name
from fineweb_mask.models.settings.selection import NEAR_DUPLICATE
from fineweb_mask.tasks.reporting import charts
from fineweb_mask.tasks.reporting.breakdown import Breakdown
from fineweb_mask.tasks.reporting.charts import Histogram
from fineweb_mask.tasks.reporting.geometry import Diversity
from fineweb_mask.tasks.reporting.page import Column, Figure, Section, Table, Tile
from fineweb_mask.tasks.source.inventory import Inventory, notes_of
from fineweb_mask.tasks.workspace.records.counts import Counts, add_groups, mean_of
from fineweb_mask.tasks.workspace.references import NOT_KEPT, ShardFiles

FUNNEL, BY_GROUP, QUALITY = "Where documents went", "Share selected by group", "Quality and length"
DIVERSITY, LOSSES, OPTIMUM = "Diversity", "What each group loses", "Distance from the optimum"
"""Titles of sections, which findings name."""
STAGE_OF = {**dict.fromkeys(NOT_KEPT, "dedup"), "bad_vector": "embed"}
"""The stage that drops documents for a reason, unless it is ingest."""
GROUPS = {
    "dump": "dump",
    "domain": "url domain",
    "n_chars": "length decile (characters)",
    "quality": "quality decile (standard deviations)",
}
SAMPLES = ("eligible", "random, as many as selected", "selected")
GEOMETRY = [
    Column("n", "count"),
    Column("effective rank", "number"),
    Column("mean cosine", "number"),
    Column("nearest neighbour, mean cosine", "number"),
    Column(f"near-duplicates (cosine {NEAR_DUPLICATE} or more)", "share"),
]
"""Columns of a table of `Geometry`."""
STEPS = {"ingest": "dropped by ingest"} | {reason: reason_name(reason) for reason in OTHER_NAMES}
LISTED = 200
"""Rows of a table, at most."""
LISTED_LOSSES = 5  # columns


def tiles(counts: Counts, blocks: Sequence[dict[str, Any]]) -> list[Tile]:
    """Return the key figures."""
    estimated = f" ({counts.estimated})" if counts.estimated else ""
    share = counts.selected / max(counts.documents_eligible, 1)
    tiles = [
        Tile(f"{counts.documents_in:,}", "documents in the source"),
        Tile(f"{counts.documents_eligible:,}", "eligible for selection"),
        Tile(f"{counts.selected:,}", f"selected, {share:.1%} of the eligible"),
        Tile(f"{counts.tokens_selected:,}", f"tokens selected{estimated}"),
    ]
    if (gap := widest_gap(blocks)) is not None:
        tiles.append(Tile(f"{100 * gap:.3g}%", "at most missing on the way from random to the best possible"))
    return tiles


def funnel(counts: Counts, shards: Sequence[ShardFiles]) -> Section:
    """Count every document of the source by the stage and the reason for which it was dropped."""
    drops = list(_drops(counts, shards))
    steps = [
        ("in the source", counts.documents_in),
        *((f"dropped: {reason}", number) for stage, reason, number in drops if stage == "ingest"),
        ("ingested", counts.documents_ingested),
        *((f"dropped: {reason}", number) for stage, reason, number in drops if stage != "ingest"),
        ("eligible for selection", counts.documents_eligible),
        ("not selected", counts.not_selected),
        ("selected", counts.selected),
    ]
    columns = [Column("step"), Column("documents", "count", has_bars=True), Column("of the source", "share")]
    rows = [[step, number, number / max(counts.documents_in, 1)] for step, number in steps]
    return Section(FUNNEL, tables=[Table("From the source to the selection", columns, rows)])


def _drops(counts: Counts, shards: Sequence[ShardFiles]) -> Iterator[tuple[str, str, int]]:
    """Yield stage, reason and number of dropped documents, in the order of the stages."""
    by_ingest: Counter[str] = Counter()
    for shard in shards:
        by_ingest.update(shard.documents.details.get("dropped", {}))
    later = []
    for reason, number in counts.dropped.items():
        text = reason.replace("_", " ")
        if by_ingest[reason]:
            yield "ingest", text, by_ingest[reason]
        if number > by_ingest[reason]:
            later.append((STAGE_OF.get(reason, "select"), text, number - by_ingest[reason]))
    yield from sorted(later)


def shares(breakdown: Breakdown) -> Section:
    """Show which share of each group is selected; not of a column of one group."""
    tables = []
    for name, rows in breakdown.groups.items():
        if sum(row.documents > 0 for row in rows) > 1:
            what = GROUPS.get(name, name)
            overall = sum(row.selected for row in rows) / sum(row.documents for row in rows)
            columns = [Column(what), Column("documents", "count"), Column("selected", "count")]
            columns.append(Column("share", "share", has_bars=True))
            numbers = [[*row, row.selected / max(row.documents, 1)] for row in rows]
            tables.append(Table(f"Share selected by {what}", columns, numbers, f"Of all: {overall:.1%}."))
    return Section(BY_GROUP, [breakdown.counted], tables=tables)


def distributions(breakdown: Breakdown) -> Section:
    """Show the distributions of quality and length before and after the selection; not that of one value."""
    drawn = {"quality": "quality (standard deviations)", "n_chars": "length (characters, logarithmic)"}
    panels, medians = [], []
    for name, label in drawn.items():
        before, after = breakdown.numbers[name], breakdown.selected[name]
        if len(before) and before[0] < before[-1]:
            panels.append(Histogram(label, before, after, name == "n_chars"))
            if len(after):
                said = f"{median(before):,.4g} before, {median(after):,.4g} after"
                medians.append(f"Median {label.split()[0]}: {said}.")
    if not panels:
        return Section(QUALITY)
    title, said = "Quality and length before and after the selection", " ".join(medians)
    caption = f"{breakdown.counted} {said} The outermost bars include all values beyond them."
    return Section(QUALITY, figures=[Figure("quality", *charts.histograms(title, panels), f"{title}. {said}", caption)])


def median(ascending: NDArray[np.float64]) -> float:
    """Return the lower median of numbers (n,)."""
    return float(ascending[(len(ascending) - 1) // 2])


def diversity(measured: Diversity) -> Section:
    """Show how diverse the embeddings are before and after the selection, and what their clusters are about."""
    eligible, selected, shards = measured.eligible, measured.selected, measured.eligible.shards
    sample = (
        f"Measured on {len(eligible.places):,} of {eligible.population:,} eligible and "
        f"{len(selected.places):,} of {selected.population:,} selected documents, from {shards:,} "
        f"shard{'' if shards == 1 else 's'}. Each of them on a map: fineweb-mask explore, with the workspace's folder."
    )
    geometry = Table(
        "Diversity of the embeddings",
        [Column("documents"), *GEOMETRY],
        [[name, *one] for name, one in zip(SAMPLES, measured.geometry.values(), strict=True)],
        note="Fewer documents have more distant neighbours, so compare the selection with as many random ones. "
        "Effective rank: the exponential of the entropy of the covariance's spectrum.",
    )
    clusters = Table(
        "Clusters",
        [Column("words"), *(Column(name, "share") for name in ("eligible", "selected")), Column("ratio", "number")],
        [
            [cluster.words or "no words", before, after, after / before]
            for cluster in measured.clusters
            for before, after in [(cluster.before / len(eligible.places), cluster.after / max(len(selected.places), 1))]
        ],
        note="Shares of the sample. A ratio above 1 means that the selection favours the cluster.",
    )
    return Section(DIVERSITY, [sample], tables=[clusters, geometry])


def group_losses(groups: Sequence[GroupLosses], wiped: Sequence[Wiped]) -> list[Section]:
    """Show what every step before the selection drops of each group; nothing if none drops any."""
    tables: list[Table] = []
    hurt = {one.by_column for one in wiped}
    columns = dict.fromkeys(group.by_column for group in groups if group.dropped)
    for column in sorted(columns, key=lambda name: name not in hurt)[:LISTED_LOSSES]:
        of_column = [group for group in groups if group.by_column == column]
        of_column.sort(key=lambda group: (group.kept / max(group.documents, 1), -group.documents))
        steps = [step for step in STEPS if any(step in group.dropped for group in of_column)]
        rows = [
            [
                "unknown" if one.value is None else one.value,
                one.documents,
                *(sum(one.dropped.get(step, {}).values()) for step in steps),
                one.kept,
                one.kept / max(one.documents, 1),
            ]
            for one in of_column[:LISTED]
        ]
        labels = ["in the source", *(STEPS[step] for step in steps), "eligible"]
        shown = [Column(column), *(Column(label, "count") for label in labels)]
        more = len(of_column) - LISTED
        note = "" if more <= 0 else f"{more:,} more groups are in the view losses of fineweb-mask sql."
        shown.append(Column("share kept", "share", has_bars=True))
        tables.append(Table(f"Losses by {column}", shown, rows, note))
    text = ["What each step before the selection drops of each group, from the source on; those that keep least first."]
    if len(columns) > LISTED_LOSSES:
        text.append(f"{len(columns) - LISTED_LOSSES:,} more columns are in the view losses of fineweb-mask sql.")
    return [Section(LOSSES, text, tables=tables)] if tables else []


def budgets(blocks: Sequence[dict[str, Any]], column: str, budget_by: str) -> Section:
    """Show how much each group was to have of the budget, and how much its documents take."""
    found, spent = add_groups(blocks), "tokens_selected" if budget_by == "tokens" else "selected"
    rows = [
        [
            group["group"] or "unknown",
            group["documents"],
            group["selected"],
            round(group["budget"]),
            group[spent] / group["budget"] if group["budget"] else None,
        ]
        for group in found[:LISTED]
    ]
    note = "Filled: what the selected documents take of the budget. What one group has too few for goes to the others."
    if len(found) > LISTED:
        note += f" The largest {LISTED} of {len(found):,} groups are shown; metrics.json has all of them."
    columns = [Column(name, "count") for name in ("documents", "selected", f"budget ({budget_by})")]
    filled = Column("filled", "share", has_bars=True)
    return Section("Budgets by group", tables=[Table("Groups", [Column(column), *columns, filled], rows, note)])


def widest_gap(blocks: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the largest gap of all blocks; None if no block has a bound."""
    return max((block["gap"] for block in blocks if block["gap"] is not None), default=None)


def claim(blocks: Sequence[Mapping[str, Any]]) -> str:
    """Return what the certificates of all blocks prove together, in a sentence."""
    gap = widest_gap(blocks)
    if gap is None:
        return "This solver gives no bound on the best possible selection."
    where = ", in any block" if len(blocks) > 1 else ""
    missing = f"at most {100 * gap:.3g}% is missing{where}"
    return f"Of the way from a random selection to the best possible, {missing}."


def certificate(blocks: Sequence[dict[str, Any]]) -> Section:
    """Show how close the selection of every block is to the best possible."""
    names = ("objective", "random_objective", "upper_bound", "gap")

    def row(name: str, documents: int, selected: int, figures: list[float | None]) -> list[Any]:
        return [name, documents, selected, selected / max(documents, 1), *figures]

    rows = [
        row(block["name"], block["documents"], block["selected"], [block[name] for name in names])
        for block in blocks[:LISTED]
    ]
    solved = [block for block in blocks if block["objective"] is not None]
    if len(blocks) > 1:
        documents, selected = (sum(block[name] for block in blocks) for name in ("documents", "selected"))
        means = [weighted_mean(solved, name) for name in names]
        rows.insert(0, row(f"all {len(blocks):,} blocks, mean", documents, selected, means))
    note = "The gap is the distance to the upper bound, as a share of the distance from a random selection to it."
    if len(blocks) > LISTED:
        note += f" The first {LISTED} of {len(blocks):,} blocks are shown; metrics.json has all of them."
    columns = [Column("block"), Column("documents", "count"), Column("selected", "count"), Column("share", "share")]
    columns += [Column(name, "precise") for name in ("objective", "random selection", "upper bound")]
    table = Table("Blocks", [*columns, Column("gap", "gap")], rows, note)
    return Section(OPTIMUM, [claim(blocks)], tables=[table] if rows else [])


def weighted_mean(blocks: Sequence[dict[str, Any]], name: str) -> float | None:
    """Return the mean of a figure over the blocks, weighted by their documents; None if a block lacks the figure."""
    values = [block[name] for block in blocks]
    return None if None in values else mean_of(values, blocks)


def what_was_read(source: Inventory | None, shards: Sequence[ShardFiles]) -> Section:
    """Tell of the files of the source, and of what ingest found in them."""
    found = [] if source is None else [*source.lines, *source.worries]
    table = Table("Files, columns and keys of the source", [Column("about"), Column("found")], found)
    notes = notes_of(file for shard in shards for file in (shard.documents, shard.scores))
    return Section("What was read", notes, tables=[table] if found else [])
