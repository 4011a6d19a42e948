"""Measure the diversity of the embeddings before and after a selection, on a sample of both, and name its clusters."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fineweb_mask.models.analysis import vectors
from fineweb_mask.models.analysis.groups import telling_words
from fineweb_mask.models.analysis.vectors import Unit, nearest_cosines, unit_rows
from fineweb_mask.models.selection.measures import near_duplicate_rate
from fineweb_mask.tasks.reporting.samples import Places, Sample, draw, texts_at, vectors_at
from fineweb_mask.tasks.workspace.references import ShardFiles
from fineweb_mask.tasks.workspace.workspace import Workspace

SEED = 0
SAMPLE = 20_000
"""Documents sampled from the source and from the selection, each."""
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
    nearest: float | None  # mean cosine with the nearest neighbour, of up to `QUERIES` of them
    near_duplicates: float | None  # share of these


class Cluster(NamedTuple):
    """A cluster of similar documents."""

    words: str
    before: int  # eligible documents of the sample in it
    after: int  # selected documents of the sample in it


class Diversity(NamedTuple):
    """The embeddings of the eligible and of the selected documents, measured on a sample."""

    geometry: dict[str, Geometry]  # eligible, random (as many as selected), selected
    clusters: list[Cluster]
    eligible: Sample
    selected: Sample


def measure(workspace: Workspace, shards: Sequence[ShardFiles]) -> Diversity | None:
    """Sample documents and measure their vectors; None if no document is eligible or none is selected."""
    generator = np.random.default_rng(SEED)
    eligible, selected = draw(workspace, shards, SAMPLE, generator)
    if not len(eligible.places) or not len(selected.places):
        return None
    before = unit_rows(vectors_at(workspace, shards, eligible.places))
    after = unit_rows(vectors_at(workspace, shards, selected.places))
    same = np.sort(generator.choice(len(before), size=min(len(before), len(after)), replace=False))
    return Diversity(
        geometry={
            "eligible": _geometry(before, generator),
            "random": _geometry(before[same], generator),
            "selected": _geometry(after, generator),
        },
        clusters=_clusters(workspace, shards, eligible.places, before, after),
        eligible=eligible,
        selected=selected,
    )


def _geometry(unit: Unit, generator: np.random.Generator) -> Geometry:
    queries = np.sort(generator.choice(len(unit), size=min(QUERIES, len(unit)), replace=False))
    nearest = nearest_cosines(unit[queries], unit, queries) if len(unit) > 1 else np.empty(0, dtype=np.float32)
    return Geometry(
        documents=len(unit),
        effective_rank=vectors.effective_number(vectors.spectrum(unit)),
        mean_cosine=vectors.mean_cosine(unit),
        nearest=float(nearest.mean()) if len(nearest) else None,
        near_duplicates=near_duplicate_rate(nearest),
    )


def _clusters(
    workspace: Workspace, shards: Sequence[ShardFiles], places: Places, before: Unit, after: Unit
) -> list[Cluster]:
    """Cluster the eligible documents, assign each selected one to the nearest centre, and name the clusters."""
    labels, n_clusters = clustered(before, CLUSTERS)
    sizes = np.bincount(labels, minlength=n_clusters)
    centres = np.stack([before[labels == cluster].sum(axis=0) for cluster in range(n_clusters)])
    centres /= np.maximum(np.linalg.norm(centres, axis=1, keepdims=True), 1e-12)
    kept = np.bincount((after @ centres.T).argmax(axis=1), minlength=n_clusters)
    step = max(1, -(-len(places) // NAMING_DOCUMENTS))
    named, texts = texts_at(workspace, shards, places[::step], NAMING_CHARACTERS)
    words = telling_words(texts, labels[::step][named], n_clusters)
    clusters = map(Cluster, words, sizes.tolist(), kept.tolist())
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
