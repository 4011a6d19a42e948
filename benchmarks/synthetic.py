"""Seeded vectors that look like a corpus: clusters of uneven size, a decaying spectrum, near-duplicates."""

import numpy as np


def clustered(
    n: int,
    d: int = 768,
    *,
    duplicates: float = 0.2,
    seed: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """Make unit vectors and a quality in (0, 1).

    Parameters
    ----------
    n, d
        Documents and dimensions.
    duplicates
        Share of the documents that are near-copies of others.
    seed
        The same seed gives the same corpus.

    Returns
    -------
    features : (n, d) float32
        Unit rows: a common mean, a cluster centre and noise, each dimension scaled by the spectrum.
    quality : (n,) float32
        Differs by cluster and by document.
    """
    random = np.random.default_rng(seed)
    n_clusters = max(8, n // 100)
    label = random.choice(n_clusters, n, p=random.dirichlet(np.full(n_clusters, 0.5)))
    spectrum = (1 / np.sqrt(1 + np.arange(d) / 20)).astype(np.float32)
    spectrum /= np.sqrt((spectrum**2).mean() * d)
    mean = random.standard_normal(d, dtype=np.float32)
    centres = random.standard_normal((n_clusters, d), dtype=np.float32)
    features = random.standard_normal((n, d), dtype=np.float32)
    features *= 0.8
    features += centres[label]
    features += mean
    features *= spectrum
    copies = random.choice(n, int(duplicates * n), replace=False)
    sources = random.integers(0, n, len(copies))
    noise = random.standard_normal((len(copies), d), dtype=np.float32) * (0.05 / np.sqrt(d))
    features[copies] = features[sources] + noise
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    score = 0.3 * random.normal(size=n_clusters)[label] + 0.25 * random.normal(size=n)
    return features, (1 / (1 + np.exp(-2 * score))).astype(np.float32)
