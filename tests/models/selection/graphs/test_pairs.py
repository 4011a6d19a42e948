"""Pairs of similar documents against all products."""

import numpy as np
import pytest
import torch

from fineweb_mask.models.selection.graphs import pairs
from fineweb_mask.models.selection.graphs.neighbours import nearest, nearest_in_groups
from fineweb_mask.models.selection.graphs.pairs import listed_pairs, similar_pairs
from fineweb_mask.models.selection.rows import Rows


def near_copies(n, d, seed=0, spread=0.4):
    """Unit rows in groups of four, at all distances from each other."""
    random = np.random.default_rng(seed)
    centres = random.normal(size=(-(-n // 4), d)).repeat(4, axis=0)[:n]
    rows = centres + spread * random.random((n, 1)) * random.normal(size=(n, d)) + 0.3
    return Rows(torch.nn.functional.normalize(torch.from_numpy(rows).float(), dim=1))


def all_pairs(rows, threshold):
    x = rows.block(slice(None)).double()
    return {tuple(pair) for pair in ((x @ x.T).triu(1) >= threshold).nonzero().tolist() if pair[0] != pair[1]}


@pytest.mark.parametrize("d", [8, 300], ids=["few dimensions", "shortened"])
@pytest.mark.parametrize("side", [50, 4096])
@pytest.mark.parametrize("threshold", [0.7, 0.9, 0.99])
def test_every_pair_above_the_threshold_is_found(d, side, threshold, monkeypatch):
    monkeypatch.setattr(pairs, "BLOCK_ROWS", {"cpu": side})
    rows = near_copies(400, d)
    found = similar_pairs(rows, threshold)
    listed = list(zip(found.first.tolist(), found.second.tolist(), strict=True))
    assert listed == sorted(all_pairs(rows, threshold))
    assert listed
    assert found.complete
    x = rows.block(slice(None))
    torch.testing.assert_close(found.cosine, (x[found.first] * x[found.second]).sum(1))


def test_a_document_with_very_many_partners_keeps_the_nearest(monkeypatch):
    rows = near_copies(120, 16, spread=0.1)
    alike = Rows(rows.block(slice(0, 1)) + 0.1 * rows.block(slice(None)))
    alike = Rows(torch.nn.functional.normalize(alike.block(slice(None)), dim=1))
    found = similar_pairs(alike, 0.9, most_neighbours=5)
    assert not found.complete
    x = alike.block(slice(None)).double()
    cosines = (x @ x.T).fill_diagonal_(-1)
    least = cosines.topk(5, dim=1).values[:, -1]
    kept = {*zip(found.first.tolist(), found.second.tolist(), strict=True)}
    for i, j in kept:
        assert cosines[i, j] >= min(least[i], least[j]) - 1e-6
    # Dropped in between, as soon as there are too many, the result is the same.
    monkeypatch.setattr(pairs, "PRUNED_AT", 50)
    monkeypatch.setattr(pairs, "BLOCK_ROWS", {"cpu": 30})
    again = similar_pairs(alike, 0.9, most_neighbours=5)
    assert (again.first.tolist(), again.second.tolist()) == (found.first.tolist(), found.second.tolist())
    assert not again.complete


@pytest.mark.parametrize("k", [3, 60])
def test_pairs_read_off_exact_lists_are_all_that_they_hold(k):
    rows = near_copies(400, 8)
    lists = nearest(rows, k)
    found = listed_pairs(lists, 0.9)
    listed = list(zip(found.first.tolist(), found.second.tolist(), strict=True))
    assert listed == sorted(set(listed))
    assert found.complete == (listed == sorted(all_pairs(rows, 0.9)))
    assert found.complete == (k == 60)
    x = rows.block(slice(None))
    torch.testing.assert_close(found.cosine, (x[found.first] * x[found.second]).sum(1))


def test_approximate_lists_hold_nearly_all_pairs():
    random = np.random.default_rng(0)
    own = random.normal(size=(60, 32)).repeat(40, axis=0) + 0.8 * random.normal(size=(2_400, 32))
    copies = own[:1_600] + 0.1 * random.normal(size=(1_600, 32))
    rows = Rows(torch.nn.functional.normalize(torch.from_numpy(np.concatenate([own, copies])).float(), dim=1))
    lists, exact = nearest_in_groups(rows, 16), similar_pairs(rows, 0.9)
    assert lists.missed is not None  # they are not exact
    found = listed_pairs(lists, 0.9)
    assert not found.complete
    keys = [pairs.first * rows.n + pairs.second for pairs in (exact, found)]
    assert bool(torch.isin(keys[1], keys[0]).all())
    assert len(keys[1]) >= 0.99 * len(keys[0])


def test_unlike_documents_have_no_pairs():
    found = similar_pairs(Rows(torch.eye(10)), 0.5)
    assert len(found) == 0
    assert found.complete
