"""The annotation of a document's row of the source file."""

import numpy as np
import pytest

from fineweb_mask.models.quality.column import ColumnValueError
from fineweb_mask.models.quality.sidecar import SidecarScorer
from fineweb_mask.models.settings.quality import SidecarScorerSettings

ANNOTATIONS = np.array([3.0, np.nan, 5.0, np.inf], dtype=np.float32)


def test_a_document_has_the_annotation_of_its_row():
    scorer = SidecarScorer(SidecarScorerSettings(path="{shard}.npy"), ANNOTATIONS)
    assert scorer.score([2, 0]).tolist() == [5.0, 3.0]


def test_a_row_without_an_annotation_is_named():
    scorer = SidecarScorer(SidecarScorerSettings(path="{shard}.npy"), ANNOTATIONS)
    with pytest.raises(ColumnValueError, match="row 1 of the source file is null or not finite") as caught:
        scorer.score([0, 1])
    assert caught.value.position == 1


def test_rows_without_an_annotation_have_the_missing_score_and_annotations_stay_as_they_are():
    scorer = SidecarScorer(SidecarScorerSettings(path="{shard}.npy", missing=-1), ANNOTATIONS)
    assert scorer.score([3, 1, 0]).tolist() == [-1.0, -1.0, 3.0]
    assert np.isinf(ANNOTATIONS[3])
