"""A score from a column of the source."""

from decimal import Decimal

import numpy as np
import pytest

from fineweb_mask.models.quality.column import ColumnScorer, ColumnValueError
from fineweb_mask.models.quality.registry import load_scorer
from fineweb_mask.models.settings.quality import ColumnScorerSettings


def scorer(**settings):
    return ColumnScorer(ColumnScorerSettings(name="edu", column="score", **settings))


def test_a_score_is_the_column_s_number():
    scores = scorer().score([1, 2.5, -3, Decimal("0.25"), 0])
    assert scores.dtype == np.float32
    assert scores.tolist() == [1.0, 2.5, -3.0, 0.25, 0.0]
    assert scorer().score([]).shape == (0,)


def test_it_reads_the_column_that_the_settings_name():
    assert load_scorer(ColumnScorerSettings(column="language_score"), "").column == "language_score"


@pytest.mark.parametrize("value", ["3", True, b"1", [1.0], {"score": 1}])
def test_a_value_that_is_no_number_is_an_error_that_names_the_column(value):
    with pytest.raises(ColumnValueError, match=r"column 'score' must hold numbers.*scorer 'edu'") as caught:
        scorer(missing=0).score([1.0, None, value])
    assert caught.value.position == 2


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), -float("inf"), 1e300])
def test_a_missing_value_is_an_error_or_the_score_that_was_set(value):
    with pytest.raises(
        ColumnValueError, match=r"'score' is null or not finite in 2 of 4 rows.*set `missing`"
    ) as caught:
        scorer().score([1.0, value, value, 2.0])
    assert caught.value.position == 1
    assert scorer(missing=-1.5).score([1.0, value, 2.0]).tolist() == [1.0, -1.5, 2.0]
