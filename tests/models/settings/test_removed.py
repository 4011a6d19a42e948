"""A setting that is gone has one line, which says what to write instead."""

from typing import Any

import pytest

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.settings import PipelineSettings
from fineweb_mask.models.settings.quality import TrainQualitySettings
from fineweb_mask.models.settings.removed import REMOVED
from fineweb_mask.models.settings.validation import validated

WHOLE = {
    "workspace": "w",
    "source": {"path": "corpus"},
    "quality": {"scorers": [{"kind": "column", "column": "score"}]},
}
OF_TRAINING = ("teacher", "training.autotune_seconds")


def content_of(entry: str) -> dict[str, Any]:
    """Return the part of a recipe that an entry, `key` or `key: value`, is about."""
    key, _, value = entry.partition(": ")
    content: Any = value or "anything"
    for part in reversed(key.split(".")):
        content = [{part: content}] if part in IN_A_LIST.get(key, ()) else {part: content}
    return content


IN_A_LIST = {
    "materialize.export.format": ("format",),
    "quality.scorers.buckets": ("buckets",),
    "quality.scorers.kind": ("kind",),
    "quality.scorers.share": ("share",),
}


@pytest.mark.parametrize("entry", [entry for entry in REMOVED if entry not in OF_TRAINING])
def test_a_setting_that_is_gone_says_what_to_write_instead(entry: str) -> None:
    with pytest.raises(SettingsError) as caught:
        validated(PipelineSettings, WHOLE | content_of(entry))
    assert REMOVED[entry] in [line.partition(": ")[2] for line in str(caught.value).splitlines()]


@pytest.mark.parametrize("entry", OF_TRAINING)
def test_a_setting_of_a_training_that_is_gone_says_so(entry: str) -> None:
    with pytest.raises(SettingsError, match=entry) as caught:
        validated(TrainQualitySettings, {"labels": {"path": "labels.parquet"}} | content_of(entry))
    assert str(caught.value).endswith(REMOVED[entry])
