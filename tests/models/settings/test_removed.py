"""A setting that is gone has one line, which says what to write instead."""

from typing import Any

import pytest

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.settings import PipelineSettings
from fineweb_mask.models.settings.quality import TrainQualitySettings
from fineweb_mask.models.settings.validation import validated

SCORERS = [{"kind": "column", "column": "token_count"}]
PERPLEXITY = {"kind": "perplexity", "model": "m"}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"quality": {"scorers": SCORERS, "raw": ["column"]}}, "quality.raw: is gone: add the scores up beforehand"),
        (
            {"quality": {"scorers": [{"kind": "classes", "name": "topic", "model": "m"}]}},
            "quality.scorers.0: is gone: write the labels beforehand",
        ),
        (
            {"quality": {"scorers": [PERPLEXITY | {"share": 0.2}]}},
            "quality.scorers.0.share: is gone: compute Min-K% in a column",
        ),
        (
            {"quality": {"scorers": [PERPLEXITY | {"buckets": [12.5]}]}},
            "quality.scorers.0.buckets: is gone: count beforehand",
        ),
    ],
)
def test_a_setting_that_is_gone_says_what_to_write_instead(content: dict[str, Any], expected: str) -> None:
    sample = {"workspace": "w", "source": {"path": "s"}, "quality": {"scorers": SCORERS}}
    with pytest.raises(SettingsError) as caught:
        validated(PipelineSettings, sample | content)
    [line] = str(caught.value).splitlines()
    assert line.startswith(expected)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"training": {"autotune_seconds": 60}}, "training.autotune_seconds: is gone: set epochs, learning_rate"),
        ({"teacher": {"scorer": {"model": "m.bin"}}}, "teacher: is gone: score the texts with the other model first"),
    ],
)
def test_a_setting_of_a_training_that_is_gone_says_so(content: dict[str, Any], expected: str) -> None:
    with pytest.raises(SettingsError, match=expected):
        validated(TrainQualitySettings, {"labels": {"path": "l.parquet"}} | content)
