"""The bandit over clusters: whom it scores, and how few."""

import numpy as np
import torch

from fineweb_mask.models.selection.selectors.bandit import look_at_clusters


def corpus_of(means, size, seed=0):
    random = np.random.default_rng(seed)
    labels = torch.arange(len(means)).repeat_interleave(size)
    values = torch.from_numpy(np.repeat(means, size) + 0.1 * random.normal(size=len(labels))).float()
    return labels, values


def look(labels, values, limit, **options):
    scored = []

    def score(documents):
        scored.append(documents)
        return values[documents]

    options = {"exploration": 0.0, "batch": 10} | options
    seen = look_at_clusters(labels, torch.arange(len(labels)), score, limit, **options)
    assert torch.cat(scored).unique().tolist() == seen.nonzero()[:, 0].tolist()
    assert len(torch.cat(scored)) == int(seen.sum())  # nobody is scored twice
    return seen, [int(labels[documents[0]]) for documents in scored]


def test_without_exploration_the_best_cluster_is_scored_until_it_is_empty():
    labels, values = corpus_of([0.0, 3.0, 1.0], 40)
    _, order = look(labels, values, 60)
    assert order[:3] == [0, 1, 2]
    assert order[3:6] == [1, 1, 1]
    assert order[6] == 2


def test_with_much_exploration_the_clusters_are_scored_in_turn():
    labels, values = corpus_of([0.0, 3.0, 1.0], 40)
    _, order = look(labels, values, 1_000, exploration=1e6)
    assert sorted(order) == [0] * 4 + [1] * 4 + [2] * 4
    assert all(set(order[start : start + 3]) == {0, 1, 2} for start in range(0, 12, 3))


def test_few_documents_are_scored_where_clusters_differ():
    means = np.random.default_rng(1).normal(size=30)
    labels, values = corpus_of(means, 100)
    seen, _ = look(labels, values, 300)
    assert int(seen.sum()) < 1_500  # of 3,000
    best = torch.where(seen, values, -torch.inf).topk(300).values.mean()
    assert float(best) > 0.9 * float(values.topk(300).values.mean())


def test_everything_is_scored_where_the_budget_needs_it():
    labels, values = corpus_of([0.0, 1.0], 10)
    seen, _ = look(labels, values, 20)
    assert seen.all()


def test_the_selector_takes_the_best_of_those_it_looked_at(corpus, selected):
    features, quality = corpus
    found = selected("quad", features, quality, options={"n_clusters": 12, "batch": 4})
    looked = found.inclusion > found.inclusion.min()
    assert looked.sum() < 400
    assert set(found.indices) == set(np.flatnonzero(looked)[np.argsort(-quality[looked])[:40]])
