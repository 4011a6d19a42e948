"""Show how diverse the vectors are before and after the selection, and what their clusters are about."""

import numpy as np
from numpy.typing import NDArray

from fineweb_mask.models.settings.selection import NEAR_DUPLICATE
from fineweb_mask.tasks.reporting import charts
from fineweb_mask.tasks.reporting.charts import MapLabel
from fineweb_mask.tasks.reporting.geometry import Diversity
from fineweb_mask.tasks.reporting.page import Column, Figure, Section, Table

DRAWN_POINTS = 6_000
LEAST_EXPLAINED = 0.2  # share of the variance below which a map of principal components shows next to nothing
EXPLORE = "The same documents to search and to click on: fineweb-mask explore, with the workspace's folder."
SAMPLES = ("eligible", "random, as many as selected", "selected")
GEOMETRY = {
    "documents": Column("n", "count"),
    "effective_rank": Column("effective rank", "number"),
    "mean_cosine": Column("mean cosine", "number"),
    "nearest": Column("nearest neighbour, mean cosine", "number"),
    "near_duplicates": Column(f"near-duplicates (cosine {NEAR_DUPLICATE} or more)", "share"),
}


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
    explained = sum(measured.map.explained)
    is_drawn = explained >= LEAST_EXPLAINED
    no_map = (
        f"Two principal components hold {explained:.1%} of the vectors' variance, too little for a map: "
        "fineweb-mask explore, with the workspace's folder, draws one that keeps neighbours together."
    )
    figures = [*([_map(measured, sample)] if is_drawn else []), _nearest_neighbours(measured)]
    text = [f"Measured on {sample}", *([] if is_drawn else [no_map])]
    return Section("Diversity", text, figures, [geometry, _clusters(measured)])


def _map(measured: Diversity, sample: str) -> Figure:
    first, second = measured.map.explained
    return Figure(
        "map",
        charts.scatter_map(
            "Map of the embeddings",
            f"first principal component ({first:.1%} of the variance)",
            f"second principal component ({second:.1%})",
            {"eligible": _thinned(measured.map.before), "selected": _thinned(measured.map.after)},
            labels=_cluster_labels(measured),
            note="each point is a document; each word is typical of a cluster",
        ),
        alt="Eligible documents as grey points, the selected ones on top of them in blue.",
        caption=f"Sample: {sample} {EXPLORE}",
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
