"""Which near-duplicates may be selected, against the rule, document by document."""

import numpy as np
import pytest
import torch

from fineweb_mask.models.selection.near_duplicates import without_near_duplicates
from fineweb_mask.models.selection.neighbours import nearest
from fineweb_mask.models.selection.rows import Rows
from fineweb_mask.models.selection.selector import select


def groups_of_alike(seed, n=60, d=12):
    """Unit rows of which many have others that are alike, in groups, and a quality with ties."""
    random = np.random.default_rng(seed)
    centres = random.normal(size=(8, d))
    rows = random.normal(size=(n, d))
    rows[:40] = centres[random.integers(0, 8, 40)] + random.choice([0.05, 0.2, 0.4]) * rows[:40]
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows.astype(np.float32), random.integers(0, 20, n).astype(np.float32)


def one_by_one(rows, quality, threshold):
    kept = []
    for document in np.argsort(-quality, kind="stable"):
        if not kept or (rows[kept] @ rows[document]).max() < threshold:
            kept.append(document)
    return sorted(kept)


@pytest.mark.parametrize("length", [3, 60])
def test_of_documents_that_are_alike_the_best_one_remains(length):
    for seed in range(5):
        rows, quality = groups_of_alike(seed)
        own = Rows(torch.from_numpy(rows))
        found = without_near_duplicates(own, torch.from_numpy(quality), 0.9, nearest(own, length))
        kept = found.nonzero()[:, 0].numpy()
        assert ((rows[kept] @ rows[kept].T) - np.eye(len(kept)) < 0.9).all()
        if length > 3:  # else a group is larger than a list, and what remains of it is looked at again
            assert kept.tolist() == one_by_one(rows, quality, 0.9)


@pytest.mark.parametrize("solver", ["mean_field", "greedy", "top_quality", "random", "d4", "policy_gradient"])
@pytest.mark.parametrize("by", ["documents", "tokens"])
def test_no_selector_takes_two_documents_that_are_alike(solver, by):
    rows, quality = groups_of_alike(3)
    learning = {"n_epochs": 5, "n_rollout": 8}
    common = {"solver": solver, "budget_by": by, "tokens": np.full(60, 3), "policy_gradient": learning}
    found = select(rows, quality, select_ratio=0.3, **common).indices
    cosines = rows[found] @ rows[found].T
    assert (cosines - np.eye(len(found)) < 0.9).all()
    assert len(found) == 18
    most = select(rows, quality, select_ratio=0.9, **common)
    assert most.indices.tolist() == one_by_one(rows, quality, 0.9)  # fewer than asked for: no more are unlike
    everything = select(rows, quality, select_ratio=1.0, near_duplicates=None, **common)
    assert len(everything.indices) == 60


def test_equal_documents_are_one():
    rows = np.tile(groups_of_alike(0)[0][:1], (40, 1))
    assert select(rows, np.arange(40.0), select_ratio=0.5).indices.tolist() == [39]
