"""INGENIOUS against its definition."""

import numpy as np
import torch

from fineweb_mask.models.selection.selectors.ingenious import greedy_gains


def test_gains_are_those_of_a_plain_greedy_search(corpus):
    features, _ = corpus
    similarity = torch.from_numpy(features[:60] @ features[:60].T).clamp(min=0)
    covered, expected, waiting = torch.zeros(60), torch.zeros(60), list(range(60))
    while waiting:
        gains = (similarity[waiting] - covered).clamp(min=0).sum(1)
        best = waiting[int(gains.argmax())]
        expected[best] = gains.max()
        covered = torch.maximum(covered, similarity[best])
        waiting.remove(best)
    np.testing.assert_allclose(greedy_gains(similarity), expected, atol=1e-3)


def test_documents_of_large_gains_are_sampled_more_often(corpus, selected):
    features, _ = corpus
    gains = greedy_gains(torch.from_numpy(features @ features.T).clamp(min=0)).numpy()
    found = selected("ingenious", features, np.zeros(200), constants={"size": 200})
    assert gains[found.indices].mean() > 2 * gains.mean()


def test_equal_gains_are_sampled_uniformly_and_every_part_has_its_share(selected):
    counts, four = np.zeros(8), {"budget": 4, "normalize": "none"}
    for seed in range(150):
        chosen = selected("ingenious", np.eye(8), np.zeros(8), seed=seed, constants={"size": 4}, **four).indices
        counts[chosen] += 1
    assert counts.sum() == 600
    np.testing.assert_allclose(counts / 150, 0.5, atol=0.16)  # four deviations
