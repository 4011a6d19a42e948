"""How far the vectors of a corpus spread before and after a selection, measured on a sample of both, and their map."""

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fineweb_mask.models.analysis.vectors import (
    Unit,
    effective_rank,
    mean_cosine,
    nearest_cosines,
    principal_axes,
    spectrum,
    unit_rows,
)
from fineweb_mask.models.selection.measures import near_duplicate_rate
from fineweb_mask.models.settings import ReportSettings
from fineweb_mask.tasks.reporting.samples import Drawn, Place, draw, texts_at, vectors_at
from fineweb_mask.tasks.workspace.shard_files import ShardFiles
from fineweb_mask.tasks.workspace.workspace import Workspace

SEED = 0
QUERIES = 4_000
"""Documents whose nearest neighbour is looked for among all that were drawn."""
CLUSTERS = 12
CLUSTER_ITERATIONS = 20
CLUSTER_DOCUMENTS = 20  # on average, at least
NAMED_BY = 4_000
"""Documents whose words name the clusters, and how much of each is read."""
READ = 1_500  # characters


class Geometry(NamedTuple):
    """How far a set of vectors spreads; None where it is too small to tell."""

    documents: int
    effective_rank: float
    mean_cosine: float | None
    nearest: NDArray[np.float32]  # cosine of the nearest neighbour of some of them
    near_duplicates: float | None  # share of those

    def as_metrics(self) -> dict[str, Any]:
        """Return it as JSON."""
        mean = float(self.nearest.mean()) if len(self.nearest) else None
        return {**self._asdict(), "nearest": mean, "nearest_of": len(self.nearest)}


class Cluster(NamedTuple):
    """Documents that lie together."""

    words: str
    centre: tuple[float, float]  # on the map
    before: int  # of the documents drawn
    after: int


class Map(NamedTuple):
    """Where documents lie in the plane."""

    labels: tuple[str, str]  # of the axes
    before: NDArray[np.float64]  # (n, 2)
    after: NDArray[np.float64]  # (m, 2)
    note: str = ""


class Spread(NamedTuple):
    """What the vectors of the eligible and of the selected documents are like."""

    geometry: dict[str, Geometry]  # eligible, random (as many as selected), selected
    map: Map
    clusters: list[Cluster]
    eligible: Drawn
    selected: Drawn
    unit: Unit  # (m, d) of the selected documents drawn

    def nearest_selected(self, unit: Unit, places: Sequence[Place]) -> NDArray[np.float32]:
        """Return the cosine of documents with the nearest other document of those that were drawn of the selected."""
        index_of = {place: index for index, place in enumerate(self.selected.places)}
        own = np.array([index_of.get(place, -1) for place in places], dtype=np.int64)
        return nearest_cosines(unit, self.unit, own)


def measure(workspace: Workspace, shards: Sequence[ShardFiles], settings: ReportSettings) -> Spread | None:
    """Draw documents and measure their vectors; None where nothing was eligible or nothing selected."""
    generator = np.random.default_rng(SEED)
    eligible, selected = draw(workspace, shards, settings.sample, generator)
    if not eligible.places or not selected.places:
        return None
    before = unit_rows(vectors_at(workspace, shards, eligible.places))
    after = unit_rows(vectors_at(workspace, shards, selected.places))
    same = np.sort(generator.choice(len(before), size=min(len(before), len(after)), replace=False))
    plane = _plane(before, after, settings)
    return Spread(
        geometry={
            "eligible": _geometry(before, generator),
            "random": _geometry(before[same], generator),
            "selected": _geometry(after, generator),
        },
        map=plane,
        clusters=_clusters(workspace, shards, eligible.places, before, after, plane),
        eligible=eligible,
        selected=selected,
        unit=after,
    )


def _geometry(unit: Unit, generator: np.random.Generator) -> Geometry:
    queries = np.sort(generator.choice(len(unit), size=min(QUERIES, len(unit)), replace=False))
    nearest = nearest_cosines(unit[queries], unit, queries) if len(unit) > 1 else np.empty(0, dtype=np.float32)
    return Geometry(
        documents=len(unit),
        effective_rank=effective_rank(spectrum(unit)),
        mean_cosine=mean_cosine(unit),
        nearest=nearest,
        near_duplicates=near_duplicate_rate(nearest),
    )


def _plane(before: Unit, after: Unit, settings: ReportSettings) -> Map:
    if settings.map == "umap" and find_spec("umap") is not None:
        reducer = import_module("umap").UMAP(metric="cosine", random_state=SEED, n_jobs=1)
        return Map(("UMAP, first axis", "UMAP, second axis"), reducer.fit_transform(before), reducer.transform(after))
    if before.shape[1] < 2:
        before, after = (np.pad(unit, ((0, 0), (0, 1))) for unit in (before, after))
    found = principal_axes(before)
    first, second = found.explained
    labels = (
        f"first principal component ({first:.1%} of the variance)",
        f"second principal component ({second:.1%})",
    )
    note = "umap-learn is not installed: principal components" if settings.map == "umap" else ""
    return Map(labels, found.project(before), found.project(after), note)


def _clusters(
    workspace: Workspace,
    shards: Sequence[ShardFiles],
    places: Sequence[Place],
    before: Unit,
    after: Unit,
    plane: Map,
) -> list[Cluster]:
    """Cluster the eligible documents, put the selected ones to the nearest centre, and name each cluster."""
    import torch

    from fineweb_mask.models.analysis.words import telling_words
    from fineweb_mask.models.selection.k_means import k_means
    from fineweb_mask.models.selection.rows import Rows

    n_clusters = int(np.clip(len(before) // CLUSTER_DOCUMENTS, 1, CLUSTERS))
    seeded = torch.Generator().manual_seed(SEED)
    found, _ = k_means(Rows(torch.from_numpy(before)), n_clusters, CLUSTER_ITERATIONS, seeded)
    labels = found.numpy()
    members = [np.flatnonzero(labels == cluster) for cluster in range(n_clusters)]
    centres = np.stack([before[rows].sum(axis=0) for rows in members])
    centres /= np.maximum(np.linalg.norm(centres, axis=1, keepdims=True), 1e-12)
    kept = np.bincount((after @ centres.T).argmax(axis=1), minlength=n_clusters)
    step = max(1, -(-len(places) // NAMED_BY))
    named, texts = texts_at(workspace, shards, places[::step], READ)
    words = telling_words(texts, labels[::step][named], n_clusters)
    clusters = [
        Cluster(name, (float(x), float(y)), len(rows), int(after_count))
        for name, rows, after_count in zip(words, members, kept, strict=True)
        for x, y in [np.median(plane.before[rows], axis=0) if len(rows) else (0.0, 0.0)]
    ]
    return sorted((cluster for cluster in clusters if cluster.before), key=lambda cluster: -cluster.before)
