"""k-means finds separate clusters."""

import numpy as np
import torch

from fineweb_mask.models.selection.k_means import k_means
from fineweb_mask.models.selection.rows import Rows


def test_k_means_finds_separate_clusters():
    random = np.random.default_rng(0)
    label = np.arange(90) % 3
    points = np.eye(3, 8, dtype=np.float32)[label] + 0.05 * random.normal(size=(90, 8)).astype(np.float32)
    rows = Rows(torch.nn.functional.normalize(torch.from_numpy(points), dim=1))
    found, closeness, _ = k_means(rows, 3, 10, torch.Generator().manual_seed(1))
    assert all(len(set(found[label == cluster].tolist())) == 1 for cluster in range(3))
    assert float(closeness.min()) > 0.9
