"""A score from a column of the source, or from a sidecar."""

from decimal import Decimal

import numpy as np
import pytest

from fineweb_mask.models.quality.column import ColumnValueError, NumberScorer
from fineweb_mask.models.quality.registry import load_scorer
from fineweb_mask.models.settings.quality import ColumnScorerSettings, SidecarScorerSettings


def scorer(**settings):
    return load_scorer(ColumnScorerSettings(name="edu", column="score", **settings), "")


def test_a_score_is_the_column_s_number():
    assert scorer().columns == ("score",)
    scores = scorer().score([1, 2.5, -3, Decimal("0.25"), 0])
    assert scores.dtype == np.float32
    assert scores.tolist() == [1.0, 2.5, -3.0, 0.25, 0.0]
    assert scorer().score([]).shape == (0,)


@pytest.mark.parametrize("value", ["3", True, [1.0]])
def test_a_value_that_is_no_number_is_an_error_that_names_the_column(value):
    with pytest.raises(ColumnValueError, match=r"column 'score' must hold numbers.*scorer 'edu'") as caught:
        scorer(missing=0).score([1.0, None, value])
    assert caught.value.position == 2


@pytest.mark.parametrize("value", [None, float("nan"), 1e300])
def test_a_missing_value_is_an_error_or_the_score_that_was_set(value):
    says = r"the score 'edu' is null or not finite in 2 of 4 rows.*set `missing`"
    with pytest.raises(ColumnValueError, match=says) as caught:
        scorer().score([1.0, value, value, 2.0])
    assert caught.value.position == 1
    assert scorer(missing=-1.5).score([1.0, value, 2.0]).tolist() == [1.0, -1.5, 2.0]


def test_a_difference_is_of_two_columns_of_numbers():
    difference = scorer(minus="conditional")
    assert difference.columns == ("score", "conditional")
    assert difference.score([3.0, 2], [2.5, Decimal("2.25")]).tolist() == [0.5, -0.25]
    with pytest.raises(ColumnValueError, match="column 'conditional' must hold numbers"):
        difference.score([1.0], ["2"])
    for pair in ((None, 1.0), (1.0, float("inf"))):
        values = [2.0, pair[0]], [1.0, pair[1]]
        with pytest.raises(ColumnValueError, match="null or not finite in 1 of 2 rows"):
            difference.score(*values)
        assert scorer(minus="conditional", missing=-9).score(*values).tolist() == [1.0, -9.0]


def test_a_document_has_the_annotation_of_its_row_or_the_missing_score():
    annotations = np.array([3.0, np.nan, 5.0, np.inf], dtype=np.float32)
    strict = NumberScorer(SidecarScorerSettings(path="{shard}.npy"), annotations)
    assert strict.score([2, 0]).tolist() == [5.0, 3.0]
    with pytest.raises(ColumnValueError, match="the score 'sidecar' is null or not finite") as caught:
        strict.score([0, 1])
    assert caught.value.position == 1
    lenient = NumberScorer(SidecarScorerSettings(path="{shard}.npy", missing=-1), annotations)
    assert lenient.score([3, 1, 0]).tolist() == [-1.0, -1.0, 3.0]
    assert np.isinf(annotations[3])
