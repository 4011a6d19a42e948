"""Read labels: positive examples, dropped rows, and errors that name the remedy."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.models.settings.quality import LabelSettings
from fineweb_mask.tasks.source.labels import LabelsError, check_labels, read_labels

TEXTS = ["one", "two", "three", "four"]


@pytest.fixture
def read(tmp_path):
    def call(settings=None, **columns):
        path = tmp_path / "labels.parquet"
        pq.write_table(pa.table(columns), path)
        return read_labels(LabelSettings(path=str(path), **settings or {}))

    return call


def test_scores_from_the_threshold_on_are_positive(read):
    for scores in ([2.9, 3.0, 5.0, 0.0], [2, 3, 5, 0]):
        texts, positive = read(text=TEXTS, score=scores)
        assert positive.tolist() == [False, True, True, False]
        assert texts == TEXTS
    assert read({"threshold": 5.0}, text=TEXTS, score=[2, 3, 5, 0])[1].sum() == 1
    found = read({"threshold": 1.0}, text=TEXTS, score=[True, False, None, True])[1]
    assert found.tolist() == [True, False, True]


def test_rows_without_text_or_score_are_left_out(read):
    given = pa.array(["a", None, " \n", "b", "c", "d"]).dictionary_encode()
    texts, positive = read(text=given, Score=[1.0, 5.0, 5.0, None, float("nan"), 4.0])
    assert (texts, positive.tolist()) == (["a", "d"], [False, True])


@pytest.mark.parametrize(
    ("settings", "columns", "message"),
    [
        ({}, {"text": TEXTS, "grade": [1, 2, 3, 4]}, r"column 'score': set score_column to one of \['text', 'grade'\]"),
        (
            {},
            {"body": TEXTS, "score": [1, 2, 3, 4]},
            r"'text': rename, .* --text-column, one of \['body', 'score'\]",
        ),
        ({}, {"text": [1, 2, 3, 4], "score": [1, 2, 3, 4]}, "the column 'text' must hold text, its type is int64"),
        ({}, {"text": TEXTS, "score": ["1", "2", "3", "x"]}, "'score' must hold numbers or booleans.*by DuckDB"),
        ({}, {"text": TEXTS, "score": [3, 4, 5, 3]}, "same side .*: set threshold, now 3, .* from 3 to 5"),
        ({}, {"text": [None, ""], "score": [1, 2]}, "must hold rows with both a text and"),
    ],
)
def test_labels_that_cannot_be_used(read, settings, columns, message):
    with pytest.raises(LabelsError, match=message):
        read(settings, **columns)


def test_a_file_that_is_missing_damaged_or_no_parquet_is_named(tmp_path):
    path = tmp_path / "labels.parquet"
    labels = LabelSettings(path=str(path))
    with pytest.raises(LabelsError, match="do not exist"):
        check_labels(labels)
    path.write_text("text,score")
    with pytest.raises(LabelsError, match="cannot be read as Parquet"):
        check_labels(labels)
    pq.write_table(pa.table({"text": TEXTS * 500, "score": np.arange(2000) % 6}), path)
    content = bytearray(path.read_bytes())
    content[4:60] = bytes(56)
    path.write_bytes(content)
    with pytest.raises(LabelsError, match="are damaged"):
        read_labels(labels)
