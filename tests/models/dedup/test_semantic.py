import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fineweb_mask.models.dedup import semantic
from fineweb_mask.models.dedup.semantic import cluster_centres, clusters_of, first_similar


def units(rows, dimensions, seed, spread):
    """Return unit vectors around a few directions, so that many are near each other."""
    random = np.random.default_rng(seed)
    around = random.normal(size=(max(1, rows // 4), dimensions))
    vectors = around[random.integers(0, len(around), rows)] + spread * random.normal(size=(rows, dimensions))
    vectors = vectors.astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def by_definition(vectors, threshold):
    kept, dropped = [], {}
    for place, vector in enumerate(vectors):
        near = [other for other in kept if float(vectors[other] @ vector) >= threshold]
        if near:
            dropped[place] = near[0]
        else:
            kept.append(place)
    return dropped


@given(st.integers(1, 60), st.integers(2, 8), st.integers(0, 10_000), st.floats(0.05, 1), st.floats(0.5, 0.99))
def test_a_document_is_dropped_for_the_first_kept_one_that_is_like_it(rows, dimensions, seed, spread, threshold):
    vectors = units(rows, dimensions, seed, spread)
    cosines = vectors @ vectors.T
    if (np.abs(cosines - threshold) < 1e-5).any():  # rounding decides
        return
    found = first_similar(vectors, threshold)
    assert dict(zip(found.dropped.tolist(), found.kept.tolist(), strict=True)) == by_definition(vectors, threshold)
    assert found.dropped.tolist() == sorted(found.dropped.tolist())


@pytest.mark.parametrize("block", [1, 7, 64])
def test_blocks_make_no_difference(block, monkeypatch):
    vectors = units(300, 16, 0, 0.2)
    whole = first_similar(vectors, 0.9)
    assert 50 < len(whole.dropped) < 300
    monkeypatch.setattr(semantic, "BLOCK", block)
    again = first_similar(vectors, 0.9)
    assert np.array_equal(again.dropped, whole.dropped)
    assert np.array_equal(again.kept, whole.kept)


def test_a_chain_of_documents_drops_only_what_is_like_a_kept_one():
    angles = np.deg2rad(np.arange(0, 90, 10)).astype(np.float32)
    chain = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    found = first_similar(chain, float(np.cos(np.deg2rad(11))))
    assert found.dropped.tolist() == [1, 3, 5, 7]
    assert found.kept.tolist() == [0, 2, 4, 6]


def test_cells_are_the_same_every_time_and_hold_what_is_alike():
    vectors = units(2_000, 32, 1, 0.05)
    centres = cluster_centres(vectors, 20, seed=3)
    assert centres.shape == (20, 32)
    assert np.array_equal(centres, cluster_centres(vectors, 20, seed=3))
    assert not np.array_equal(centres, cluster_centres(vectors, 20, seed=4))
    cells = clusters_of(vectors, centres)
    pairs = np.argwhere(np.triu(vectors @ vectors.T > 0.97, 1))
    assert (cells[pairs[:, 0]] == cells[pairs[:, 1]]).mean() > 0.95
    assert cluster_centres(vectors[:3], 20, seed=3).shape == (3, 32)
