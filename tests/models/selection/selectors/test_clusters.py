"""SemDeDup, D4 and k-means-quality sampling against their definitions, and whom Quad's bandit looks at, and how few."""

import numpy as np
import torch

from fineweb_mask.models.selection.k_means import k_means
from fineweb_mask.models.selection.rows import Rows
from fineweb_mask.models.selection.selectors.clusters import look_at_clusters


def arc(*degrees):
    angles = np.deg2rad(degrees)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


ONE = {"n_clusters": 1}


def test_semdedup_drops_near_duplicates_first(corpus, selected):
    features, quality = corpus
    copies = np.concatenate([features[100:150], features[100:150]])  # every document twice
    scores = np.concatenate([quality[:50], quality[:50] + 0.1])
    found = selected("semdedup", copies, scores, select_ratio=0.5, constants={"n_clusters": 4})
    assert len(set((found.indices % 50).tolist())) == 50
    assert (found.indices >= 50).all()


def test_d4_selects_the_farthest_from_the_centre(selected):
    constants = ONE | {"dedup_ratio": 1.0}
    found = selected("d4", arc(-50, -10, 0, 10, 40), np.zeros(5), budget=2, constants=constants)
    assert found.indices.tolist() == [0, 4]


def test_d4_deduplicates_before_it_clusters_again(selected):
    # The two copies at 80 degrees are the farthest from the centre: one of them is dropped, the other is taken.
    features = arc(80, 80, -30, 0, 5, 10)
    found = selected("d4", features, np.zeros(6), budget=2, constants={"dedup_ratio": 5 / 6} | ONE)
    assert sorted(np.rad2deg(np.arctan2(*features[found.indices].T[::-1])).round()) == [-30, 80]


def test_kmq_gives_clusters_by_size(selected):
    features = np.repeat([[1.0, 0], [0, 1.0], [-1.0, 0]], [2, 10, 10], axis=0)
    features += 1e-3 * np.random.default_rng(0).normal(size=features.shape)
    found = selected("kmq", features, np.zeros(22), budget=11, seed=5, constants={"n_clusters": 3})
    assert np.histogram(found.indices, [0, 2, 12, 22])[0].tolist() == [1, 5, 5]


def test_kmq_samples_by_quality_inside_a_cluster(corpus, selected):
    features, quality = corpus
    found = [
        selected("kmq", features, quality, constants=ONE, seed=seed, normalize="none").indices for seed in range(10)
    ]
    weights = np.exp((quality - quality.mean()) / quality.std())
    mean = np.mean([quality[indices].mean() for indices in found])
    assert quality.mean() + 0.1 < mean < (weights @ quality) / weights.sum() + 0.05


def corpus_of(means, size):
    labels = torch.arange(len(means)).repeat_interleave(size)
    noise = np.random.default_rng(0).normal(size=len(labels))
    return labels, torch.from_numpy(np.repeat(means, size) + 0.1 * noise).float()


def look(labels, values, limit, **options):
    """Return who is seen, (n,) bool, and the clusters in the order in which they were looked at."""
    order = []

    class Noting:  # the quality, which notes whose is asked for
        def __getitem__(self, documents):
            if documents.dtype != torch.bool:
                order.append(int(labels[documents[0]]))
            return values[documents]

        def __ge__(self, other):
            return values >= other

    given = {"exploration": 0.0, "batch": 10} | options
    members = [(labels == cluster).nonzero()[:, 0] for cluster in labels.unique()]
    return look_at_clusters(members, Noting(), torch.ones(len(labels)), limit, **given), order


def test_few_documents_are_looked_at_where_clusters_differ():
    means = np.random.default_rng(1).normal(size=30)
    labels, values = corpus_of(means, 100)
    seen, _ = look(labels, values, 300)
    assert int(seen.sum()) < 1_500  # of 3,000
    best = torch.where(seen, values, -torch.inf).topk(300).values.mean()
    assert float(best) > 0.9 * float(values.topk(300).values.mean())
    assert look(*corpus_of([0.0, 1.0], 10), 20)[0].all()  # where the budget needs all


def test_of_two_clusters_the_one_of_the_larger_upper_confidence_bound_is_next():
    labels = torch.tensor([0, 0, 0, 0, 1, 1, 1])
    values = torch.tensor([2.0, 2.0, 2.0, 2.0, 1.0, 1.0, 1.0])
    # One each: deviation 0.5. After k of cluster 0: 2 + e sqrt(2 ln(k + 1) / k) / 2, and 1 + e sqrt(2 ln(k + 1)) / 2.
    # k = 2: 2 + 0.524 e, 1 + 0.741 e; k = 3: 2 + 0.481 e, 1 + 0.833 e; k = 4: all of cluster 0 is seen.
    assert look(labels, values, 6, exploration=2.0, batch=1)[1] == [0, 1, 0, 0, 0, 1, 1]
    assert look(labels, values, 6, exploration=4.0, batch=1)[1][:4] == [0, 1, 0, 0]
    assert look(labels, values, 6, exploration=5.0, batch=1)[1][:4] == [0, 1, 0, 1]


def test_the_selector_takes_the_best_of_those_it_looked_at(corpus, selected):
    features, quality = corpus
    found = selected("quad", features, quality, constants={"n_clusters": 12, "batch": 4})
    looked = found.inclusion > found.inclusion.min()
    assert looked.sum() < 200
    assert set(found.indices) == set(np.flatnonzero(looked)[np.argsort(-quality[looked])[:20]])


def test_k_means_finds_separate_clusters():
    random, label = np.random.default_rng(0), np.arange(90) % 3
    points = torch.from_numpy(np.eye(3, 8)[label] + 0.05 * random.normal(size=(90, 8))).float()
    rows = Rows(torch.nn.functional.normalize(points, dim=1))
    found, closeness, _ = k_means(rows, 3, 10, torch.Generator().manual_seed(1))
    assert all(len(set(found[label == cluster].tolist())) == 1 for cluster in range(3))
    assert float(closeness.min()) > 0.9
