"""The baselines against their definitions."""

import numpy as np
import pytest

from fineweb_mask.models.selection import SelectionSettings, select


@pytest.mark.parametrize("keep", ["quality", "hard", "easy"])
def test_semdedup_drops_near_duplicates_first(keep, corpus):
    features, quality = corpus
    copies = np.concatenate([features[100:150], features[100:150]])  # every document twice
    scores = np.concatenate([quality[:50], quality[:50] + 0.1])
    selection = select(
        copies,
        scores,
        SelectionSettings(solver="semdedup", select_ratio=0.5, semdedup={"keep": keep, "n_clusters": 4}),
    )
    assert len(set((selection.indices % 50).tolist())) == 50
    if keep == "quality":
        assert (selection.indices >= 50).all()


def test_quality_sampling_goes_from_top_to_random_with_its_temperature(corpus):
    features, quality = corpus

    def mean_quality(temperature):
        chosen = SelectionSettings(solver="quality_sampling", quality_sampling={"temperature": temperature})
        return select(features, quality, chosen).terms["quality"]

    assert mean_quality(1e-3) > 0.99
    assert mean_quality(0.7) > mean_quality(1e3) + 0.1
    assert abs(mean_quality(1e3)) < 0.3


def test_random_differs_by_seed(corpus):
    first, second = (select(*corpus, SelectionSettings(solver="random", seed=seed)).indices for seed in (0, 1))
    assert set(first) != set(second)
