"""Measure the diversity of the embeddings before and after a selection, on a sample of both, and map them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fineweb_mask.models.analysis import vectors
from fineweb_mask.models.analysis.groups import telling_words
from fineweb_mask.models.analysis.vectors import Unit, nearest_cosines, unit_rows
from fineweb_mask.models.selection.measures import near_duplicate_rate
from fineweb_mask.models.settings import ReportSettings
from fineweb_mask.tasks.reporting.samples import DocumentRef, Sample, draw, kept_at, quality_at, texts_at, vectors_at
from fineweb_mask.tasks.workspace.references import ShardFiles
from fineweb_mask.tasks.workspace.workspace import Workspace

SEED = 0
QUERIES = 4_000
"""Documents whose nearest neighbour in the sample is computed."""
CLUSTERS = 12
CLUSTER_ITERATIONS = 20
CLUSTER_DOCUMENTS = 20  # on average, at least
NAMING_DOCUMENTS = 4_000
"""Documents whose words name the clusters."""
NAMING_CHARACTERS = 1_500  # read of each of them


class Geometry(NamedTuple):
    """Measures of how diverse a set of vectors is; None if there are too few vectors."""

    documents: int
    effective_rank: float
    mean_cosine: float | None
    nearest: NDArray[np.float32]  # (q,) cosine of up to `QUERIES` of them with their nearest neighbour
    near_duplicates: float | None  # share of the q
    queries: NDArray[np.int64]  # (q,) which of the vectors these are

    def as_metrics(self) -> dict[str, Any]:
        """Return the measures as JSON."""
        mean = float(self.nearest.mean()) if len(self.nearest) else None
        own = {name: value for name, value in self._asdict().items() if name != "queries"}
        return {**own, "nearest": mean, "nearest_of": len(self.nearest)}


class Cluster(NamedTuple):
    """A cluster of similar documents."""

    words: str
    centre: tuple[float, float]  # on the map
    before: int  # eligible documents of the sample in it
    after: int  # selected documents of the sample in it


class Map(NamedTuple):
    """Documents on the plane of the two principal components of those that are eligible."""

    before: NDArray[np.float64]  # (n, 2) of the eligible
    after: NDArray[np.float64]  # (m, 2) of the selected
    explained: tuple[float, float]  # shares of the variance


class Diversity(NamedTuple):
    """The embeddings of the eligible and of the selected documents, measured on a sample."""

    geometry: dict[str, Geometry]  # eligible, random (as many as selected), selected
    map: Map
    clusters: list[Cluster]
    eligible: Sample
    selected: Sample
    quality: NDArray[np.float32]  # (n,) of the eligible documents of the sample
    is_kept: NDArray[np.bool_]  # (n,) whether these are selected


def measure(workspace: Workspace, shards: Sequence[ShardFiles], settings: ReportSettings) -> Diversity | None:
    """Sample documents and measure their vectors; None if no document is eligible or none is selected."""
    generator = np.random.default_rng(SEED)
    eligible, selected = draw(workspace, shards, settings.sample, generator)
    if not eligible.documents or not selected.documents:
        return None
    before = unit_rows(vectors_at(workspace, shards, eligible.documents))
    after = unit_rows(vectors_at(workspace, shards, selected.documents))
    same = np.sort(generator.choice(len(before), size=min(len(before), len(after)), replace=False))
    axes = vectors.principal_axes(before)
    plane = Map(axes.project(before), axes.project(after), (float(axes.explained[0]), float(axes.explained[1])))
    return Diversity(
        geometry={
            "eligible": _geometry(before, generator),
            "random": _geometry(before[same], generator),
            "selected": _geometry(after, generator),
        },
        map=plane,
        clusters=_clusters(workspace, shards, eligible.documents, before, after, plane),
        eligible=eligible,
        selected=selected,
        quality=quality_at(workspace, shards, eligible.documents),
        is_kept=kept_at(workspace, shards, eligible.documents),
    )


def _geometry(unit: Unit, generator: np.random.Generator) -> Geometry:
    queries = np.sort(generator.choice(len(unit), size=min(QUERIES, len(unit)), replace=False))
    nearest = nearest_cosines(unit[queries], unit, queries) if len(unit) > 1 else np.empty(0, dtype=np.float32)
    return Geometry(
        documents=len(unit),
        effective_rank=vectors.effective_rank(vectors.spectrum(unit)),
        mean_cosine=vectors.mean_cosine(unit),
        nearest=nearest,
        near_duplicates=near_duplicate_rate(nearest),
        queries=queries,
    )


def _clusters(
    workspace: Workspace,
    shards: Sequence[ShardFiles],
    documents: Sequence[DocumentRef],
    before: Unit,
    after: Unit,
    plane: Map,
) -> list[Cluster]:
    """Cluster the eligible documents, assign each selected one to the nearest centre, and name the clusters."""
    labels, n_clusters = clustered(before, CLUSTERS)
    members = [np.flatnonzero(labels == cluster) for cluster in range(n_clusters)]
    centres = np.stack([before[rows].sum(axis=0) for rows in members])
    centres /= np.maximum(np.linalg.norm(centres, axis=1, keepdims=True), 1e-12)
    kept = np.bincount((after @ centres.T).argmax(axis=1), minlength=n_clusters)
    step = max(1, -(-len(documents) // NAMING_DOCUMENTS))
    named, texts = texts_at(workspace, shards, documents[::step], NAMING_CHARACTERS)
    words = telling_words(texts, labels[::step][named], n_clusters)
    clusters = [
        Cluster(name, (float(x), float(y)), len(rows), int(after_count))
        for name, rows, after_count in zip(words, members, kept, strict=True)
        for x, y in [np.median(plane.before[rows], axis=0) if len(rows) else (0.0, 0.0)]
    ]
    return sorted((cluster for cluster in clusters if cluster.before), key=lambda cluster: -cluster.before)


def clustered(unit: Unit, most: int) -> tuple[NDArray[np.int64], int]:
    """Return the k-means cluster of each unit row (n, d), (n,), and how many clusters there are: at most so many."""
    import torch

    from fineweb_mask.models.selection.k_means import k_means
    from fineweb_mask.models.selection.rows import Rows

    n_clusters = int(np.clip(len(unit) // CLUSTER_DOCUMENTS, 1, most))
    seeded = torch.Generator().manual_seed(SEED)
    labels: NDArray[np.int64] = k_means(
        Rows(torch.from_numpy(unit)), n_clusters, CLUSTER_ITERATIONS, seeded
    ).labels.numpy()
    return labels, n_clusters
