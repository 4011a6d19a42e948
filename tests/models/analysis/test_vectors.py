"""The geometry of vectors: equal to brute force, within its bounds, independent of the order of rows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fineweb_mask.models.analysis import vectors
from fineweb_mask.models.analysis.vectors import (
    effective_number,
    lay_out,
    mean_cosine,
    nearest_cosines,
    spectrum,
    unit_rows,
)
from fineweb_mask.models.errors import DataError

MATRICES = st.tuples(st.integers(2, 30), st.integers(2, 8)).flatmap(
    lambda shape: arrays(np.float32, shape, elements=st.floats(-1, 1, width=16).map(lambda value: value + 1.5))
)


@pytest.fixture
def unit():
    return unit_rows(np.random.default_rng(0).normal(size=(120, 16)) + 0.3)


@pytest.mark.parametrize("bad", [[[0.0, 0.0]], [[np.nan, 1.0]]])
def test_a_row_that_is_zero_or_not_finite_is_an_error(bad):
    with pytest.raises(DataError, match="zero or not finite"):
        unit_rows(np.array(bad))


def test_mean_cosine_is_that_of_all_pairs(unit):
    cosines = (unit @ unit.T).astype(np.float64)
    expected = cosines[~np.eye(len(unit), dtype=bool)].mean()
    assert mean_cosine(unit) == pytest.approx(expected, abs=1e-7)
    assert mean_cosine(unit[:1]) is None
    assert mean_cosine(np.repeat(unit[:1], 5, axis=0)) == pytest.approx(1)


def test_the_spectrum_is_that_of_the_covariance(unit, monkeypatch):
    from sklearn.decomposition import PCA

    monkeypatch.setattr(vectors, "BLOCK_ROWS", 50)
    reference = PCA().fit(unit.astype(np.float64))
    np.testing.assert_allclose(spectrum(unit), reference.explained_variance_ * (len(unit) - 1) / len(unit), atol=1e-8)


def test_the_effective_number_is_that_of_the_dimensions_in_use():
    assert effective_number(np.array([2.0, 2.0, 2.0, 0.0])) == pytest.approx(3)
    assert effective_number(np.zeros(4)) == 0
    shares = np.array([0.7, 0.2, 0.1])
    assert effective_number(shares * 9) == pytest.approx(np.prod(shares**-shares))
    same = unit_rows(np.repeat(np.random.default_rng(0).normal(size=(1, 50)), 900, axis=0))
    assert effective_number(spectrum(same)) == 0


@given(MATRICES)
def test_limits_hold_and_the_order_does_not_matter(matrix):
    unit = unit_rows(matrix)
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1, rtol=1e-6)
    rank = effective_number(spectrum(unit))
    assert rank == 0 or 1 - 1e-9 <= rank <= min(len(unit), unit.shape[1]) + 1e-6
    mean = mean_cosine(unit)
    assert -1 / (len(unit) - 1) - 1e-5 <= mean <= 1 + 1e-6
    back = unit[::-1]
    assert mean_cosine(back) == pytest.approx(mean, abs=1e-9)
    # with nearly no variance the result is rounding error, and of a direction with none the entropy's slope is infinite
    if spectrum(unit).sum() > 1e-5:
        share = float(np.finfo(np.float32).eps)  # that rounding may give to a direction without variance
        rounding = min(unit.shape) * -share * np.log(share)
        assert effective_number(spectrum(back)) == pytest.approx(rank, rel=rounding)


@pytest.mark.parametrize("block", [1, 1000])
def test_nearest_cosines_are_the_largest_of_the_others(unit, block, monkeypatch):
    from sklearn.neighbors import NearestNeighbors

    monkeypatch.setattr(vectors, "PRODUCT_ELEMENTS", block)
    distance, _ = NearestNeighbors(n_neighbors=2, metric="cosine", algorithm="brute").fit(unit).kneighbors(unit)
    found = nearest_cosines(unit, unit, np.arange(len(unit)))
    np.testing.assert_allclose(found, 1 - distance[:, 1], atol=1e-5)
    assert nearest_cosines(unit[:2], unit[1:], np.array([-1, 0])) == pytest.approx(
        [(unit[0] @ unit[1:].T).max(), (unit[1] @ unit[2:].T).max()], abs=1e-5
    )
    assert nearest_cosines(unit[:3], unit[:0]).tolist() == [-1, -1, -1]
    assert nearest_cosines(unit[:1], unit[:1], np.array([0])).tolist() == [-1]


def test_neighbours_on_the_plane_are_of_the_same_topic():
    random, labels = np.random.default_rng(0), np.arange(4).repeat(40)
    unit = unit_rows((random.normal(size=(4, 16)) * 3)[labels] + random.normal(size=(160, 16)))
    places = lay_out(unit)
    assert (places.shape, places.dtype) == ((160, 2), np.float32)
    distance = np.linalg.norm(places[:, None] - places[None], axis=2)
    np.fill_diagonal(distance, np.inf)
    assert (labels[distance.argmin(axis=1)] == labels).mean() > 0.95
    assert np.array_equal(lay_out(unit), places)


ALIKE = np.eye(1, 8, dtype=np.float32).repeat(50, axis=0)
FEW = [np.random.default_rng(1).normal(size=(n, d)) + 2 for n, d in ((1, 1), (2, 2), (9, 1), (11, 8))]


@pytest.mark.parametrize("rows", [ALIKE, *FEW], ids=lambda rows: f"{rows.shape}")
def test_few_rows_few_dimensions_and_rows_that_are_all_alike_have_places(rows):
    assert np.isfinite(lay_out(unit_rows(rows.astype(np.float32)))).all()
