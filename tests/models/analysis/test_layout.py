"""A layout keeps neighbours together."""

import numpy as np
import pytest

from fineweb_mask.models.analysis.layout import lay_out
from fineweb_mask.models.analysis.vectors import unit_rows

TOPICS, EACH, DIMENSIONS = 4, 40, 16


def topics(seed=0):
    random = np.random.default_rng(seed)
    centres = random.normal(size=(TOPICS, DIMENSIONS)) * 3
    labels = np.arange(TOPICS).repeat(EACH)
    return unit_rows(centres[labels] + random.normal(size=(TOPICS * EACH, DIMENSIONS))), labels


def share_of_same_topic(places, labels):
    distance = np.linalg.norm(places[:, None] - places[None], axis=2)
    np.fill_diagonal(distance, np.inf)
    return float((labels[distance.argmin(axis=1)] == labels).mean())


def test_neighbours_on_the_plane_are_of_the_same_topic():
    unit, labels = topics()
    places = lay_out(unit)
    assert places.shape == (len(unit), 2)
    assert places.dtype == np.float32
    assert share_of_same_topic(places, labels) > 0.95
    assert np.array_equal(lay_out(unit), places)


ALIKE = np.eye(1, 8, dtype=np.float32).repeat(50, axis=0)
FEW = [np.random.default_rng(1).normal(size=(n, d)) + 2 for n, d in ((1, 1), (2, 2), (9, 1), (11, 8))]


@pytest.mark.parametrize("rows", [ALIKE, *FEW], ids=lambda rows: f"{rows.shape}")
def test_few_rows_few_dimensions_and_rows_that_are_all_alike_have_places(rows):
    assert np.isfinite(lay_out(unit_rows(rows.astype(np.float32)))).all()
