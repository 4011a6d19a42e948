"""The bandit over clusters: whom it scores, and how few."""

import numpy as np
import torch

from fineweb_mask.models.selection import SelectorInputs
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

    given = {"exploration": 0.0, "batch": 10} | options
    looked = look_at_clusters(labels, torch.arange(len(labels)), score, limit, None, **given)
    seen = looked.seen
    assert torch.cat(scored).unique().tolist() == seen.nonzero()[:, 0].tolist()
    assert len(torch.cat(scored)) == int(seen.sum())  # nobody is scored twice
    assert torch.equal(looked.scores, torch.where(seen, values, 0.0))
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


def test_of_two_clusters_the_one_of_the_larger_upper_confidence_bound_is_next():
    labels = torch.tensor([0, 0, 0, 0, 1, 1, 1])
    values = torch.tensor([2.0, 2.0, 2.0, 2.0, 1.0, 1.0, 1.0])
    # One each: deviation 0.5. After k of cluster 0: 2 + e sqrt(2 ln(k + 1) / k) / 2, and 1 + e sqrt(2 ln(k + 1)) / 2.
    # k = 2: 2 + 0.524 e, 1 + 0.741 e; k = 3: 2 + 0.481 e, 1 + 0.833 e; k = 4: all of cluster 0 is scored.
    assert look(labels, values, 6, exploration=2.0, batch=1)[1] == [0, 1, 0, 0, 0, 1, 1]
    assert look(labels, values, 6, exploration=4.0, batch=1)[1][:4] == [0, 1, 0, 0]
    assert look(labels, values, 6, exploration=5.0, batch=1)[1][:4] == [0, 1, 0, 1]


def test_a_model_scores_only_the_documents_that_are_looked_at(corpus, selected):
    features, quality = corpus
    asked = []

    def score(documents):
        asked.append(documents)
        return -quality[documents]

    found = selected(
        "quad", features, quality, also=SelectorInputs(score=score), constants={"n_clusters": 12, "batch": 4}
    )
    asked = np.concatenate(asked)
    assert len(asked) == len(set(asked)) == found.scored < len(quality)
    assert set(found.indices) == set(asked[np.argsort(quality[asked])[:40]])


def test_the_selector_takes_the_best_of_those_it_looked_at(corpus, selected):
    features, quality = corpus
    found = selected("quad", features, quality, constants={"n_clusters": 12, "batch": 4})
    looked = found.inclusion > found.inclusion.min()
    assert looked.sum() < 400
    assert set(found.indices) == set(np.flatnonzero(looked)[np.argsort(-quality[looked])[:40]])
