"""The sections of the report: numbers in, figures and tables out."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from fineweb_mask.models.analysis.vectors import unit_rows
from fineweb_mask.models.selection.measures import NEAR_DUPLICATE
from fineweb_mask.tasks.reporting import charts
from fineweb_mask.tasks.reporting.breakdown import Breakdown, Distribution
from fineweb_mask.tasks.reporting.charts import Bar, Series, Share
from fineweb_mask.tasks.reporting.charts import Place as Label
from fineweb_mask.tasks.reporting.geometry import Spread
from fineweb_mask.tasks.reporting.page import Card, Column, Figure, Section, Side, Table, Tile
from fineweb_mask.tasks.reporting.samples import NearThreshold, documents_at, near_threshold, vectors_at
from fineweb_mask.tasks.workspace.counts import Counts
from fineweb_mask.tasks.workspace.shard_files import ShardFiles
from fineweb_mask.tasks.workspace.workspace import Workspace

LISTED_BLOCKS = 200
DRAWN_POINTS = 6_000
LONGEST_TEXT = 400  # characters of a document beside the threshold
STAGE_OF = {"duplicate": "dedup", "bad_vector": "embed"}
"""Which stage drops for a reason that is not ingest's."""
GEOMETRY = ("documents", "effective_rank", "mean_cosine", "nearest", "near_duplicates")
GROUPS = {
    "dump": "dump",
    "domain": "url domain",
    "n_chars": "length decile (characters)",
    "quality": "quality decile (standard deviations)",
    "language_score": "language score decile",
}


class StageTime(BaseModel):
    """What a stage took."""

    stage: str
    files: int
    cached: int = 0  # there before this run
    seconds: float = 0.0  # spent by this run, summed over its tasks
    built_seconds: float = 0.0  # spent by the runs that wrote the files, this one included
    documents: int | None = None  # that went through


def tiles(counts: Counts, blocks: Sequence[dict[str, Any]]) -> list[Tile]:
    """Return the key figures."""
    estimated = " (in part estimated)" if counts.tokens_estimated else ""
    share = counts.selected / max(counts.documents_eligible, 1)
    tiles = [
        Tile(f"{counts.documents_in:,}", "documents in"),
        Tile(f"{counts.documents_eligible:,}", "eligible for selection"),
        Tile(f"{counts.selected:,}", f"selected, {share:.1%} of the eligible"),
        Tile(f"{counts.tokens_selected:,}", f"tokens selected{estimated}"),
    ]
    if (gap := _widest_gap(blocks)) is not None:
        tiles.append(Tile(f"{gap:.3%}", "from the best possible, at most"))
    return tiles


def funnel(counts: Counts, shards: Sequence[ShardFiles]) -> Section:
    """Say where every document of the source went, by stage and reason."""
    drops = list(_drops(counts, shards))
    rows = [
        Bar("in the source", counts.documents_in),
        *(Bar(_worded(reason), number, aside=True) for stage, reason, number in drops if stage == "ingest"),
        Bar("ingested", counts.documents_ingested),
        *(Bar(_worded(reason), number, aside=True) for stage, reason, number in drops if stage != "ingest"),
        Bar("eligible for selection", counts.documents_eligible),
        Bar("not selected", counts.not_selected, aside=True),
        Bar("selected", counts.selected),
    ]
    outcomes = [*drops, ("select", "not selected", counts.not_selected), ("select", "selected", counts.selected)]
    return Section(
        "Where documents went",
        figures=[
            Figure(
                "funnel",
                charts.bars(
                    "From the source to the selection",
                    "documents",
                    rows,
                    note=f"n = {counts.documents_in:,} documents in the source; grey: left out",
                    form=lambda value: f"{value:,.0f}",
                ),
                alt=f"Of {counts.documents_in:,} documents {counts.selected:,} are selected.",
                caption="Blue bars are what is left after a stage, grey ones what it left out.",
            )
        ],
        tables=[
            Table(
                "Every document of the source",
                [Column("stage"), Column("outcome"), Column("documents", "count"), Column("share", "share")],
                [
                    [stage, _worded(reason), number, number / max(counts.documents_in, 1)]
                    for stage, reason, number in outcomes
                ],
            )
        ],
    )


def _drops(counts: Counts, shards: Sequence[ShardFiles]) -> Iterator[tuple[str, str, int]]:
    """Yield stage, reason and number of what was dropped, in the order of the stages."""
    by_ingest: Counter[str] = Counter()
    for shard in shards:
        by_ingest.update(shard.documents.details.get("dropped", {}))
    later = []
    for reason, number in counts.dropped.items():
        if by_ingest[reason]:
            yield "ingest", reason, by_ingest[reason]
        if number > by_ingest[reason]:
            later.append((STAGE_OF.get(reason, "select"), reason, number - by_ingest[reason]))
    yield from sorted(later)


def _worded(reason: str) -> str:
    return reason.replace("_", " ")


def distributions(breakdown: Breakdown) -> Section:
    """Show quality and length before and after."""
    kinds = {
        "quality": ("Quality before and after", "quality (standard deviations)", "quality"),
        "n_chars": ("Length before and after", "length (characters, logarithmic)", "length"),
    }
    return Section(
        "Before and after",
        figures=[
            _histogram(file, title, x_label, breakdown.histograms[name], logarithmic=name == "n_chars")
            for name, (title, x_label, file) in kinds.items()
        ],
    )


def _histogram(name: str, title: str, x_label: str, found: Distribution, *, logarithmic: bool) -> Figure:
    counts = {"eligible": found.before, "selected": found.after}
    medians = [_median(found.edges, part) for part in counts.values()]
    said = "" if None in medians else f" Median: {medians[0]:,.4g} before, {medians[1]:,.4g} after."
    return Figure(
        name,
        charts.histogram(title, x_label, found.edges, counts, logarithmic=logarithmic),
        alt=f"{title}.{said}",
        caption=f"All eligible and all selected documents.{said} The outer bars hold what lies beyond them, too.",
    )


def _median(edges: NDArray[np.float64], counts: NDArray[np.int64]) -> float | None:
    if not counts.sum():
        return None
    reached = np.cumsum(counts) / counts.sum()
    return float(np.interp(0.5, np.concatenate([[0], reached]), edges))


def retention(breakdown: Breakdown) -> Section:
    """Show what share of every group is selected."""
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
        "What was kept of which group",
        ["Of every group's eligible documents, the share that is selected. The dashed line is the share of all."],
        figures,
        tables,
    )


def _extremes(rows: Sequence[Share]) -> str:
    """Say which groups are kept most and least of."""
    rated = sorted((row for row in rows if row.documents), key=lambda row: row.selected / row.documents)
    if len(rated) < 2:
        return "All eligible documents."
    low, high = rated[0], rated[-1]
    return (
        f"All eligible documents. Kept most of {high.label} ({high.selected / high.documents:.1%}), "
        f"least of {low.label} ({low.selected / low.documents:.1%})."
    )


def diversity(spread: Spread) -> Section:
    """Show how far the vectors spread before and after, and what they are about."""
    before, random, after = spread.geometry.values()
    drawn = (
        f"{len(spread.eligible.places):,} of {spread.eligible.of:,} eligible and {len(spread.selected.places):,} of "
        f"{spread.selected.of:,} selected documents, in {spread.eligible.shards:,} "
        f"shard{'' if spread.eligible.shards == 1 else 's'}."
    )
    nearest = {
        "eligible": before.nearest,
        "random, as many as selected": random.nearest,
        "selected": after.nearest,
    }
    low = min((float(np.quantile(part, 0.01)) for part in nearest.values() if len(part)), default=0.0)
    edges = np.linspace(min(low, 0.99), 1, 41)
    x_label, y_label = spread.map.labels
    figures = [
        Figure(
            "map",
            charts.scatter_map(
                "Map of the embeddings",
                x_label,
                y_label,
                {"eligible": _thinned(spread.map.before), "selected": _thinned(spread.map.after)},
                places=_names(spread),
                note="each point is a document; words are what tells a cluster from the others",
            ),
            alt="Eligible documents as grey points, the selected ones on top of them in blue.",
            caption=f"Sample: {drawn} {spread.map.note}".strip(),
        ),
        Figure(
            "nearest-neighbour",
            charts.histogram(
                "Similarity to the nearest neighbour",
                "cosine",
                edges,
                {name: np.histogram(np.clip(part, edges[0], 1), edges)[0] for name, part in nearest.items()},
            ),
            alt=f"Mean cosine of the nearest neighbour: {_mean(before.nearest)} before, {_mean(after.nearest)} after.",
            caption="The fewer documents, the farther the nearest: so the selection is compared with as many drawn at "
            f"random from the eligible. n: documents whose neighbour was looked for, among {before.documents:,}, "
            f"{random.documents:,} and {after.documents:,}.",
        ),
    ]
    names = ["eligible", "random, as many as selected", "selected"]
    geometry = Table(
        "Spread of the vectors",
        [
            Column("documents"),
            Column("n", "count"),
            Column("effective rank", "number"),
            Column("mean cosine", "number"),
            Column("nearest neighbour, mean cosine", "number"),
            Column(f"near-duplicates (cosine from {NEAR_DUPLICATE})", "share"),
        ],
        [
            [name, *(one.as_metrics()[measure] for measure in GEOMETRY)]
            for name, one in zip(names, spread.geometry.values(), strict=True)
        ],
        note="Effective rank: the exponential of the entropy of the covariance's spectrum.",
        wide=True,
    )
    totals = sum(cluster.before for cluster in spread.clusters), sum(cluster.after for cluster in spread.clusters)
    clusters = Table(
        "Clusters",
        [
            Column("words"),
            Column("eligible", "share"),
            Column("selected", "share"),
            Column("ratio", "number"),
        ],
        [
            [cluster.words or "no words", before_share, after_share, after_share / before_share]
            for cluster in spread.clusters
            for before_share, after_share in [(cluster.before / totals[0], cluster.after / max(totals[1], 1))]
        ],
        note="Shares of the documents drawn. A ratio above 1: more of it after than before.",
        wide=True,
    )
    return Section("How far it spreads", [f"Measured on a sample: {drawn}"], figures, [geometry, clusters])


def _names(spread: Spread) -> list[Label]:
    """Return a word for each cluster, the most telling that does not yet stand for another."""
    names: dict[str, Label] = {}
    for cluster in spread.clusters:
        word = next((word for word in cluster.words.split(", ") if word not in names), "")
        names[word] = Label(*cluster.centre, word)
    return list(names.values())


def _thinned(points: NDArray[np.float64]) -> NDArray[np.float64]:
    return points[:: max(1, -(-len(points) // DRAWN_POINTS))]


def _mean(values: NDArray[np.float32]) -> str:
    return f"{values.mean():.3f}" if len(values) else "none"


def _widest_gap(blocks: Sequence[dict[str, Any]]) -> float | None:
    return max((block["gap"] for block in blocks if block["gap"] is not None), default=None)


def claim(blocks: Sequence[dict[str, Any]]) -> str:
    """Say what the certificates prove together."""
    gap = _widest_gap(blocks)
    if gap is None:
        return "This solver gives no bound on the best possible."
    return f"No selection of this size can be more than {gap:.4%} better, in any block."


def certificate(blocks: Sequence[dict[str, Any]]) -> Section:
    """Show how near the selection of every block is to the best possible."""
    names = ("objective", "random_objective", "upper_bound", "gap")
    rows = [
        [block["name"], block["documents"], block["selected"], *(block[name] for name in names)]
        for block in blocks[:LISTED_BLOCKS]
    ]
    if len(blocks) > 1:
        totals = [sum(block[name] for block in blocks) for name in ("documents", "selected")]
        rows.insert(0, [f"all {len(blocks):,} blocks, mean", *totals, *(weighted_mean(blocks, name) for name in names)])
    note = "The gap is a share of the way from a random selection to the upper bound."
    if len(blocks) > LISTED_BLOCKS:
        note += f" The first {LISTED_BLOCKS} of {len(blocks):,} blocks; metrics.json holds them all."
    table = Table(
        "Blocks",
        [
            Column("block"),
            Column("documents", "count"),
            Column("selected", "count"),
            Column("objective", "precise"),
            Column("random selection", "precise"),
            Column("upper bound", "precise"),
            Column("gap", "gap"),
        ],
        rows,
        note=note,
        wide=True,
    )
    largest = max(blocks, key=lambda block: int(block["documents"]), default=None)
    curves = [] if largest is None or not largest["history"] else [_learning_curve(largest)]
    return Section("How near to the best possible", [claim(blocks)], curves, [table] if rows else [])


def weighted_mean(blocks: Sequence[dict[str, Any]], name: str) -> float | None:
    """Return a figure's mean over the blocks, each counted by its documents; None where one lacks it."""
    if any(block[name] is None for block in blocks):
        return None
    total = sum(block["documents"] for block in blocks)
    return float(sum(block[name] * block["documents"] for block in blocks) / max(total, 1))


def _learning_curve(block: dict[str, Any]) -> Figure:
    steps, values = zip(*block["history"], strict=True)
    levels = {} if block["upper_bound"] is None else {"upper bound on any selection": block["upper_bound"]}
    levels["random selection"] = block["random_objective"]
    return Figure(
        "learning-curve",
        charts.lines(
            "Learning curve of the largest block",
            "step",
            "objective (dimensionless)",
            [Series("objective", steps, values)],
            levels=levels,
            note=f"n = {block['documents']:,} documents, {block['selected']:,} selected",
        ),
        alt=f"The objective rises to {values[-1]:.5g}; the bound is {block['upper_bound']}.",
        caption="The objective of the selection so far. Nothing can lie above the upper bound.",
    )


def threshold(workspace: Workspace, shards: Sequence[ShardFiles], spread: Spread, breakdown: Breakdown) -> Section:
    """Show documents on either side of the threshold, and why they are there."""
    sides = zip(("Just kept", "Just rejected"), near_threshold(workspace, shards), strict=True)
    return Section(
        "Near the threshold",
        [
            "The documents whose inclusion is nearest to their block's threshold, on either side: the last that were "
            "kept and the first that were not. Similar: the cosine with the nearest other selected document"
            f"{'' if len(spread.selected.places) == spread.selected.of else ' of the sample'}."
        ],
        sides=[
            Side(f"{title} ({len(found)})", _cards(workspace, shards, spread, breakdown, found))
            for title, found in sides
            if found
        ],
    )


def _cards(
    workspace: Workspace,
    shards: Sequence[ShardFiles],
    spread: Spread,
    breakdown: Breakdown,
    found: Sequence[NearThreshold],
) -> list[Card]:
    places = sorted(near.place for near in found)
    rows = documents_at(workspace, shards, places, ["id", "url", "text"])
    similar = spread.nearest_selected(unit_rows(vectors_at(workspace, shards, places)), places)
    row_of, similar_of = dict(zip(places, rows, strict=True)), dict(zip(places, similar, strict=True))
    cards = []
    for near in found:
        row, cosine = row_of[near.place], similar_of[near.place]
        above = 1 - np.searchsorted(breakdown.quality, np.float32(row["quality"])) / max(len(breakdown.quality), 1)
        why = f"quality {row['quality']:+.2f} (top {above:.0%}), similar {cosine:.2f}, "
        why += f"inclusion {near.inclusion:.4g}, threshold {near.threshold:.4g}"
        cards.append(Card(row.get("url") or row["id"], why, _beginning(row["text"])))
    return cards


def _beginning(text: str) -> str:
    """Return the first words of a text in one line."""
    line = " ".join(text[: 2 * LONGEST_TEXT].split())
    return line if len(line) <= LONGEST_TEXT and len(text) <= 2 * LONGEST_TEXT else f"{line[:LONGEST_TEXT]} …"


def time_by_stage(stages: Sequence[StageTime]) -> Section:
    """Show what every stage took."""
    rows = [
        [
            stage.stage,
            stage.files,
            stage.cached,
            stage.seconds,
            stage.built_seconds,
            stage.documents,
            stage.documents / stage.built_seconds if stage.documents and stage.built_seconds else None,
        ]
        for stage in stages
    ]
    total = sum(stage.built_seconds for stage in stages)
    return Section(
        "Time by stage",
        figures=[
            Figure(
                "time",
                charts.bars(
                    "Time by stage",
                    "seconds, summed over tasks",
                    [Bar(stage.stage, stage.built_seconds) for stage in stages],
                    note=f"n = {sum(stage.files for stage in stages):,} files in {total:,.1f} s",
                    form="{:,.1f}".format,
                ),
                alt=f"The stages took {total:,.1f} seconds in all.",
                caption="What it took to make the files that the dataset was made from, whichever run made them.",
            )
        ],
        tables=[
            Table(
                "Stages",
                [
                    Column("stage"),
                    Column("files", "count"),
                    Column("already there", "count"),
                    Column("seconds, this run", "seconds"),
                    Column("seconds in all", "seconds"),
                    Column("documents", "count"),
                    Column("documents/s", "rate"),
                ],
                rows,
                wide=True,
            )
        ],
    )
