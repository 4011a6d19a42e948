"""k-means finds separate clusters."""

import numpy as np
import torch

from fineweb_mask.models.selection.k_means import Tree, k_means
from fineweb_mask.models.selection.rows import Rows


def test_k_means_finds_separate_clusters():
    random = np.random.default_rng(0)
    label = np.arange(90) % 3
    points = np.eye(3, 8, dtype=np.float32)[label] + 0.05 * random.normal(size=(90, 8)).astype(np.float32)
    rows = Rows(torch.nn.functional.normalize(torch.from_numpy(points), dim=1))
    found, closeness, _ = k_means(rows, 3, 10, torch.Generator().manual_seed(1))
    assert all(len(set(found[label == cluster].tolist())) == 1 for cluster in range(3))
    assert float(closeness.min()) > 0.9


def test_a_tree_finds_separate_clusters_and_gives_every_group_its_share():
    random = np.random.default_rng(0)
    label = np.arange(1200) % 24
    points = np.eye(24, 32, dtype=np.float32)[label] + 0.02 * random.normal(size=(1200, 32)).astype(np.float32)
    rows = Rows(torch.nn.functional.normalize(torch.from_numpy(points), dim=1))
    tree = Tree.fit(rows, 120, 4, torch.Generator().manual_seed(0))
    assert 110 <= len(tree.centres) <= 130
    assert tree.groups.tolist() == sorted(tree.groups.tolist())
    found = tree.nearest(rows)
    for cluster in found.unique().tolist():
        assert len(set(label[found.numpy() == cluster])) == 1
    apart = torch.cat([tree.nearest(Rows(rows.take(part))) for part in torch.arange(1200).split(77)])
    assert apart.equal(found)


def test_a_tree_of_equal_rows_has_one_cluster_with_rows():
    rows = Rows(torch.ones((10, 4)) / 2)
    tree = Tree.fit(rows, 10, 4, torch.Generator().manual_seed(0))
    assert len(tree.centres) == 10
    assert len(tree.nearest(rows).unique()) == 1
