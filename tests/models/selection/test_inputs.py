"""Inputs of a selection: combined where they are good, and refused with row and remedy where they are bad."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from fineweb_mask.models.selection import (
    SelectionInputError,
    SelectionSettings,
    select,
)


def test_quality_columns_are_standardised_and_weighted(corpus):
    features, quality = corpus
    other = np.random.default_rng(1).random(len(quality)).astype(np.float32)
    columns = np.stack([quality * 1000, other, np.ones_like(quality)], axis=1)
    chosen = SelectionSettings(solver="top_quality")
    found = select(features, columns, chosen, quality_weights=[1.0, 0.0, 5.0])
    assert (found.indices == select(features, quality, chosen_one()).indices).all()


def chosen_one():
    return SelectionSettings(solver="top_quality")


def spoiled(array, row, value):
    array = array.copy()
    array[row] = value
    return array


@pytest.mark.parametrize(
    ("features", "quality", "message"),
    [
        (lambda f: spoiled(f, 7, np.nan), None, r"features row 7 .*embed"),
        (lambda f: spoiled(f, (9, 2), np.inf), None, r"features row 9 .*embed"),
        (lambda f: spoiled(f.astype(np.float64), (9, 2), 1e300), None, r"features row 9 .*infinite"),
        (lambda f: spoiled(f, 3, 0.0), None, r"features row 3 is a zero vector"),
        (lambda f: f[:, 0], None, r"features must have shape"),
        (lambda f: f[:0], lambda q: q[:0], r"features must have shape"),
        (lambda f: f.astype(str), None, r"features must hold numbers"),
        (lambda f: f[:-1], None, r"quality must have one row per row of features \(399\)"),
        (None, lambda q: spoiled(q, 11, np.nan), r"quality row 11 .*score"),
        (None, lambda q: spoiled(q, 12, -np.inf), r"quality row 12 .*score"),
        (None, lambda q: q[:, None, None], r"quality must have one row"),
    ],
)
def test_bad_input_is_named_with_row_and_remedy(features, quality, message, corpus):
    good_features, good_quality = corpus
    with pytest.raises(SelectionInputError, match=message):
        select(
            features(good_features) if features else good_features,
            quality(good_quality) if quality else good_quality,
        )


@pytest.mark.parametrize(
    ("chosen", "tokens", "message"),
    [
        ({"budget": 401}, None, r"budget is 401 documents, but there are only 400"),
        ({"metrics": {}}, None, r"metrics is empty"),
        ({"budget_by": "tokens"}, None, r"pass tokens"),
        ({"budget_by": "tokens"}, np.ones(3), r"tokens must have one value"),
        ({"budget_by": "tokens"}, np.zeros(400), r"tokens row 0"),
        ({"budget_by": "tokens", "budget": 3}, np.full(400, 9), r"below the shortest document's 9"),
    ],
)
def test_settings_that_do_not_fit_the_data_are_refused(chosen, tokens, message, corpus):
    with pytest.raises(SelectionInputError, match=message):
        select(*corpus, SelectionSettings(**chosen), tokens=tokens)


@pytest.mark.parametrize(
    "column", [lambda rows: pd.Series(list(rows)), lambda rows: pa.array(list(rows)), lambda rows: rows.tolist()]
)
def test_a_column_of_vectors_is_taken_as_a_matrix(column, corpus):
    features, quality = corpus
    assert (select(column(features), pd.Series(quality)).indices == select(features, quality).indices).all()


@pytest.mark.parametrize(
    ("features", "quality", "message"),
    [
        (pd.Series([[1.0, 2.0], [3.0]]), [1, 2], r"features row 1 has shape \(1,\), row 0 has \(2,\)"),
        (pd.Series([[1.0, 2.0], None]), [1, 2], r"features row 1 is missing \(None\): compute it again"),
        (pd.Series([["a"], ["b"]]), [1, 2], r"features must hold numbers, received dtype <U1"),
        (np.eye(2), None, r"quality is None: give an array with a row for every document; np\.zeros"),
        (None, [1, 2], r"features is None: give an array with a row for every document$"),
        (np.eye(2), [1, None], r"quality row 1 is missing \(None\)"),
    ],
)
def test_what_is_missing_or_ragged_is_named(features, quality, message):
    with pytest.raises(SelectionInputError, match=message):
        select(features, quality)


def test_zeros_for_quality_select_by_diversity_alone(corpus):
    features, _ = corpus
    selection = select(features, np.zeros(len(features)), select_ratio=0.1)
    assert selection.terms["mean_quality"] == 0
    assert selection.objective > selection.random_objective


def test_quality_has_a_weight_for_each_column(corpus):
    with pytest.raises(SelectionInputError, match="quality has 1 columns"):
        select(*corpus, SelectionSettings(), quality_weights=[1.0, 2.0])


def test_float16_sums_do_not_overflow():
    random = np.random.default_rng(0)
    features = np.full((300, 8), 60_000, dtype=np.float16)
    features[:, 0] = random.integers(-60_000, 60_000, 300)
    selection = select(features, random.random(300).astype(np.float32))
    assert np.isfinite(selection.objective)
