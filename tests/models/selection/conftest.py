"""A small corpus: clusters with near-duplicates, quality that differs by cluster."""

import numpy as np
import pytest


@pytest.fixture(scope="session")
def corpus():
    random = np.random.default_rng(0)
    n, d, n_clusters = 200, 12, 8
    label = random.integers(0, n_clusters, n)
    features = random.normal(size=(n_clusters, d))[label] + 0.6 * random.normal(size=(n, d)) + 0.3
    features[:30] = features[30:60] + 0.02 * random.normal(size=(30, d))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    quality = random.random(n_clusters)[label] + 0.5 * random.random(n)
    return features.astype(np.float32), quality.astype(np.float32)
