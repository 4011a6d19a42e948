"""Build the sections of the report: figures and tables from counts, breakdowns and measures."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from fineweb_mask.models.analysis.vectors import unit_rows
from fineweb_mask.models.losses import LEAST_DOCUMENTS, OTHER_NAMES, GroupLosses, Wiped, reason_name
from fineweb_mask.models.settings.selection import NEAR_DUPLICATE
from fineweb_mask.tasks.reporting import charts
from fineweb_mask.tasks.reporting.breakdown import Breakdown, Distribution
from fineweb_mask.tasks.reporting.charts import Bar, Share
from fineweb_mask.tasks.reporting.geometry import Diversity
from fineweb_mask.tasks.reporting.labels import MapLabel, Series
from fineweb_mask.tasks.reporting.page import Card, Column, Figure, Section, Side, Table, Tile
from fineweb_mask.tasks.reporting.samples import NearThreshold, documents_at, near_threshold, vectors_at
from fineweb_mask.tasks.workspace.records.counts import Counts, add_groups, mean_of
from fineweb_mask.tasks.workspace.shard_files import ShardFiles
from fineweb_mask.tasks.workspace.workspace import Workspace

LISTED_BLOCKS = 200
LISTED_GROUPS = 200
LISTED_COLUMNS = 50
DRAWN_POINTS = 6_000
EXPLORE = "The same documents to search and to click on: fineweb-mask explore, with the workspace's folder."
LONGEST_TEXT = 400  # characters of a document near the threshold
STAGE_OF = {"duplicate": "dedup", "near_duplicate": "dedup", "same_url": "dedup", "bad_vector": "embed"}
"""The stage that drops documents for a reason, unless it is ingest."""
STEPS = {"ingest": "dropped by ingest"} | {reason: reason_name(reason) for reason in OTHER_NAMES}
LOSSES = "What each group loses"
LISTED_LOSSES = 5  # columns
DRAWN_GROUPS = 15
SAMPLES = ("eligible", "random, as many as selected", "selected")
GEOMETRY = {
    "documents": Column("n", "count"),
    "effective_rank": Column("effective rank", "number"),
    "mean_cosine": Column("mean cosine", "number"),
    "nearest": Column("nearest neighbour, mean cosine", "number"),
    "near_duplicates": Column(f"near-duplicates (cosine {NEAR_DUPLICATE} or more)", "share"),
}
GROUPS = {
    "dump": "dump",
    "domain": "url domain",
    "n_chars": "length decile (characters)",
    "quality": "quality decile (standard deviations)",
    "language_score": "language score decile",
}


class StageTime(BaseModel):
    """Time and throughput of a stage."""

    stage: str
    files: int
    cached: int = 0  # files of earlier runs
    seconds: float = 0.0  # of this run, summed over its tasks
    built_seconds: float = 0.0  # of all runs that wrote the files, including this one
    documents: int | None = None  # processed


def tiles(counts: Counts, blocks: Sequence[dict[str, Any]]) -> list[Tile]:
    """Return the key figures."""
    estimated = " (in part estimated)" if counts.tokens_estimated else ""
    share = counts.selected / max(counts.documents_eligible, 1)
    tiles = [
        Tile(f"{counts.documents_in:,}", "documents in the source"),
        Tile(f"{counts.documents_eligible:,}", "eligible for selection"),
        Tile(f"{counts.selected:,}", f"selected, {share:.1%} of the eligible"),
        Tile(f"{counts.tokens_selected:,}", f"tokens selected{estimated}"),
    ]
    if (gap := _widest_gap(blocks)) is not None:
        tiles.append(Tile(f"{100 * gap:.3g}%", "largest possible gap to the optimum"))
    return tiles


def funnel(counts: Counts, shards: Sequence[ShardFiles]) -> Section:
    """Count every document of the source by the stage and the reason for which it was dropped."""
    drops = list(_drops(counts, shards))
    rows = [
        Bar("in the source", counts.documents_in),
        *(Bar(reason, number, grey=True) for stage, reason, number in drops if stage == "ingest"),
        Bar("ingested", counts.documents_ingested),
        *(Bar(reason, number, grey=True) for stage, reason, number in drops if stage != "ingest"),
        Bar("eligible for selection", counts.documents_eligible),
        Bar("not selected", counts.not_selected, grey=True),
        Bar("selected", counts.selected),
    ]
    outcomes = [*drops, ("select", "not selected", counts.not_selected), ("select", "selected", counts.selected)]
    note = f"n = {counts.documents_in:,} documents in the source"
    figure = Figure(
        "funnel",
        charts.bars("From the source to the selection", "documents", rows, note=note, form="{:,.0f}".format),
        alt=f"Of {counts.documents_in:,} documents {counts.selected:,} are selected.",
        caption="Blue: documents remaining after each stage. Grey: documents dropped or not selected.",
    )
    table = Table(
        "Documents by outcome",
        [Column("stage"), Column("outcome"), Column("documents", "count"), Column("share", "share")],
        [[stage, reason, number, number / max(counts.documents_in, 1)] for stage, reason, number in outcomes],
    )
    return Section("Where documents went", text=_differing(shards), figures=[figure], tables=[table])


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


def _differing(shards: Sequence[ShardFiles]) -> list[str]:
    """Return a sentence on each column that is kept as text, because its type differs between source files."""
    types: dict[str, Counter[str]] = defaultdict(Counter)
    for shard in shards:
        for column, kind in shard.documents.details.get("as_text", {}).items():
            types[column][kind] += 1
    return [
        f"The column {column!r} is kept as text, JSON where it is nested, because its type differs between source "
        f"files: {', '.join(f'{kind} in {number:,}' for kind, number in sorted(kinds.items()))}."
        for column, kinds in sorted(types.items())
    ][:LISTED_COLUMNS]


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


def diversity(measured: Diversity) -> Section:
    """Show how diverse the embeddings are before and after the selection, and what their clusters are about."""
    eligible, selected, shards = measured.eligible, measured.selected, measured.eligible.shards
    sample = (
        f"{len(eligible.documents):,} of {eligible.population:,} eligible and {len(selected.documents):,} of "
        f"{selected.population:,} selected documents, from {shards:,} shard{'' if shards == 1 else 's'}."
    )
    geometry = Table(
        "Diversity of the embeddings",
        [Column("documents"), *GEOMETRY.values()],
        [
            [name, *(one.as_metrics()[measure] for measure in GEOMETRY)]
            for name, one in zip(SAMPLES, measured.geometry.values(), strict=True)
        ],
        note="Effective rank: the exponential of the entropy of the covariance's spectrum.",
        wide=True,
    )
    return Section(
        "Diversity",
        [f"Measured on a sample: {sample}"],
        [_map(measured, sample), _nearest_neighbours(measured)],
        [geometry, _clusters(measured)],
    )


def _map(measured: Diversity, sample: str) -> Figure:
    x_label, y_label = measured.map.labels
    return Figure(
        "map",
        charts.scatter_map(
            "Map of the embeddings",
            x_label,
            y_label,
            {"eligible": _thinned(measured.map.before), "selected": _thinned(measured.map.after)},
            labels=_cluster_labels(measured),
            note="each point is a document; each word is typical of a cluster",
        ),
        alt="Eligible documents as grey points, the selected ones on top of them in blue.",
        caption=f"Sample: {sample} {measured.map.note} {EXPLORE}",
    )


def _nearest_neighbours(measured: Diversity) -> Figure:
    before, random, after = measured.geometry.values()
    nearest = {name: one.nearest for name, one in zip(SAMPLES, measured.geometry.values(), strict=True)}
    low = min((float(np.quantile(part, 0.01)) for part in nearest.values() if len(part)), default=0.0)
    edges = np.linspace(min(low, 0.99), 1, 41)
    counts = {name: np.histogram(np.clip(part, edges[0], 1), edges)[0] for name, part in nearest.items()}
    return Figure(
        "nearest-neighbour",
        charts.histogram("Similarity to the nearest neighbour", "cosine", edges, counts),
        alt=f"Mean cosine of the nearest neighbour: {_mean(before.nearest)} before, {_mean(after.nearest)} after.",
        caption="Fewer documents have more distant neighbours, so compare the selection with the random sample of the "
        f"same size. n: documents whose nearest neighbour was computed, among {before.documents:,} eligible, "
        f"{random.documents:,} random and {after.documents:,} selected documents.",
    )


def _clusters(measured: Diversity) -> Table:
    before = sum(cluster.before for cluster in measured.clusters)
    after = max(sum(cluster.after for cluster in measured.clusters), 1)
    return Table(
        "Clusters",
        [Column("words"), Column("eligible", "share"), Column("selected", "share"), Column("ratio", "number")],
        [
            [cluster.words or "no words", eligible, selected, selected / eligible]
            for cluster in measured.clusters
            for eligible, selected in [(cluster.before / before, cluster.after / after)]
        ],
        note="Shares of the sample. A ratio above 1 means that the selection favours the cluster.",
        wide=True,
    )


def _cluster_labels(measured: Diversity) -> list[MapLabel]:
    """Return for each cluster its most typical word that labels no cluster before it."""
    labels: dict[str, MapLabel] = {}
    for cluster in measured.clusters:
        word = next((word for word in cluster.words.split(", ") if word not in labels), "")
        labels[word] = MapLabel(*cluster.centre, word)
    return list(labels.values())


def _thinned(points: NDArray[np.float64]) -> NDArray[np.float64]:
    return points[:: max(1, -(-len(points) // DRAWN_POINTS))]


def _mean(values: NDArray[np.float32]) -> str:
    return f"{values.mean():.3f}" if len(values) else "none"


def _widest_gap(blocks: Sequence[dict[str, Any]]) -> float | None:
    return max((block["gap"] for block in blocks if block["gap"] is not None), default=None)


def claim(blocks: Sequence[dict[str, Any]]) -> str:
    """Return what the certificates of all blocks prove together, in a sentence."""
    gap = _widest_gap(blocks)
    if gap is None:
        return "This solver gives no bound on the best possible selection."
    assumed = next((block["bound_assumes"] for block in blocks if block.get("bound_assumes")), None)
    estimated = "" if assumed is None else f" This is estimated, not proven ({assumed})."
    where = ", in any block" if len(blocks) > 1 else ""
    return f"No selection of this size can be more than {100 * gap:.3g}% better{where}.{estimated}"


def certificate(blocks: Sequence[dict[str, Any]]) -> Section:
    """Show how close the selection of every block is to the best possible."""
    names = ("objective", "random_objective", "upper_bound", "gap")
    rows = [[block["name"], *_taken(block), *(block[name] for name in names)] for block in blocks[:LISTED_BLOCKS]]
    if len(blocks) > 1:
        totals = {name: sum(block[name] for block in blocks) for name in ("documents", "selected")}
        means = [weighted_mean(blocks, name) for name in names]
        rows.insert(0, [f"all {len(blocks):,} blocks, mean", *_taken(totals), *means])
    note = "The gap is the distance to the upper bound, as a share of the distance from a random selection to it."
    if len(blocks) > LISTED_BLOCKS:
        note += f" The first {LISTED_BLOCKS} of {len(blocks):,} blocks are shown; metrics.json has all of them."
    columns = [Column("block"), Column("documents", "count"), Column("selected", "count"), Column("share", "share")]
    columns += [Column(name, "precise") for name in ("objective", "random selection", "upper bound")]
    table = Table("Blocks", [*columns, Column("gap", "gap")], rows, note=note, wide=True)
    largest = max(blocks, key=lambda block: int(block["documents"]), default=None)
    curves = [] if largest is None or not largest["history"] else [_learning_curve(largest)]
    added = sum(block.get("filled_up", 0) for block in blocks)
    filled = (
        f"After a removal on request, the {added:,} next best documents took the place of selected ones; all others "
        "stayed, so that a new selection may differ."
    )
    texts = [claim(blocks), *([filled] if added else [])]
    return Section("Distance from the optimum", texts, curves, [table] if rows else [])


def groups(blocks: Sequence[dict[str, Any]], column: str, budget_by: str) -> Section:
    """Show how much each group has of the budget, and how much of that its documents fill."""
    found = add_groups(blocks)
    rows = [
        [
            group["group"] or "unknown",
            *(group[name] for name in ("documents", "selected", "repeated", "budget")),
            _filled(group, budget_by),
        ]
        for group in found[:LISTED_GROUPS]
    ]
    note = "Used: selected documents, each as often as it is to be used. Filled: what these take of the budget."
    if len(found) > LISTED_GROUPS:
        note += f" The largest {LISTED_GROUPS} of {len(found):,} groups are shown; metrics.json has all of them."
    columns = [Column(name, "count") for name in ("documents", "selected", "used", f"budget ({budget_by})")]
    table = Table("Groups", [Column(column), *columns, Column("filled", "share")], rows, note=note, wide=True)
    return Section("Budgets by group", tables=[table])


def _filled(group: dict[str, Any], budget_by: str) -> float | None:
    """Return the share of a group's budget that is spent; None if it has none, or its tokens were not counted."""
    spent = group.get("spent", group["repeated"] if budget_by == "documents" else None)
    return None if spent is None or not group["budget"] else spent / group["budget"]


def _taken(block: Mapping[str, Any]) -> list[float]:
    """Return a block's documents, how many of them are selected, and their share."""
    documents, selected = int(block["documents"]), int(block["selected"])
    return [documents, selected, selected / max(documents, 1)]


def weighted_mean(blocks: Sequence[dict[str, Any]], name: str) -> float | None:
    """Return the mean of a figure over the blocks, weighted by their documents; None if a block lacks the figure."""
    values = [block[name] for block in blocks]
    return None if None in values else mean_of(values, blocks)


def _learning_curve(block: dict[str, Any]) -> Figure:
    steps, values = zip(*block["history"], strict=True)
    levels = {} if block["upper_bound"] is None else {"upper bound on any selection": block["upper_bound"]}
    levels["random selection"] = block["random_objective"]
    title, y_label = "Learning curve of the largest block", "objective (dimensionless)"
    note = f"n = {block['documents']:,} documents, {block['selected']:,} selected"
    return Figure(
        "learning-curve",
        charts.lines(title, "step", y_label, [Series("objective", steps, values)], levels=levels, note=note),
        alt=f"The objective rises to {values[-1]:.5g}; the bound is {block['upper_bound']}.",
        caption="The objective during the optimisation. No selection can exceed the upper bound.",
    )


def threshold(workspace: Workspace, shards: Sequence[ShardFiles], measured: Diversity, breakdown: Breakdown) -> Section:
    """Show documents on both sides of the threshold, with the figures that decided about them."""
    of_sample = "" if len(measured.selected.documents) == measured.selected.population else " of the sample"
    sides = zip(("Just kept", "Just rejected"), near_threshold(workspace, shards), strict=True)
    return Section(
        "Near the threshold",
        [
            "The documents whose inclusion is closest to their block's threshold, selected and rejected. Similar: the "
            f"cosine with the nearest other selected document{of_sample}."
        ],
        sides=[
            Side(f"{title} ({len(found)})", _cards(workspace, shards, measured, breakdown, found))
            for title, found in sides
            if found
        ],
    )


def _cards(
    workspace: Workspace,
    shards: Sequence[ShardFiles],
    measured: Diversity,
    breakdown: Breakdown,
    found: Sequence[NearThreshold],
) -> list[Card]:
    documents = sorted(near.document for near in found)
    rows = documents_at(workspace, shards, documents, ["id", "url", "text"])
    similar = measured.nearest_selected(unit_rows(vectors_at(workspace, shards, documents)), documents)
    row_of, similar_of = dict(zip(documents, rows, strict=True)), dict(zip(documents, similar, strict=True))
    cards = []
    for near in found:
        row, cosine = row_of[near.document], similar_of[near.document]
        above = 1 - np.searchsorted(breakdown.quality, np.float32(row["quality"])) / max(len(breakdown.quality), 1)
        why = f"quality {row['quality']:+.2f} (top {above:.0%}), similar {cosine:.2f}, "
        why += f"inclusion {near.inclusion:.4g}, threshold {near.threshold:.4g}"
        cards.append(Card(row.get("url") or row["id"], why, _beginning(row["text"])))
    return cards


def _beginning(text: str) -> str:
    """Return the beginning of a text in one line."""
    line = " ".join(text[: 2 * LONGEST_TEXT].split())
    return line if len(line) <= LONGEST_TEXT and len(text) <= 2 * LONGEST_TEXT else f"{line[:LONGEST_TEXT]} …"


def time_by_stage(stages: Sequence[StageTime]) -> Section:
    """Show the time and throughput of every stage."""
    rows = []
    for stage in stages:
        rate = stage.documents / stage.built_seconds if stage.documents and stage.built_seconds else None
        amounts = [stage.files, stage.cached, stage.seconds, stage.built_seconds, stage.documents, rate]
        rows.append([stage.stage, *amounts])
    total = sum(stage.built_seconds for stage in stages)
    bars = [Bar(stage.stage, stage.built_seconds) for stage in stages]
    note = f"n = {sum(stage.files for stage in stages):,} files in {total:,.1f} s"
    figure = Figure(
        "time",
        charts.bars("Time by stage", "seconds, summed over tasks", bars, note=note, form="{:,.1f}".format),
        alt=f"All stages together took {total:,.1f} seconds.",
        caption="The time to build all files behind this dataset, including those of earlier runs.",
    )
    columns = [
        Column("stage"),
        Column("files", "count"),
        Column("cached", "count"),
        Column("seconds, this run", "seconds"),
        Column("seconds, all runs", "seconds"),
        Column("documents", "count"),
        Column("documents/s", "rate"),
    ]
    return Section("Time by stage", figures=[figure], tables=[Table("Stages", columns, rows, wide=True)])
