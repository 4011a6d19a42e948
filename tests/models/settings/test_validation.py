"""Settings that are gone: one line each, with what to write instead; wrong ones are in flows/test_recipe.py."""

from typing import Any

import pytest

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.settings import PipelineSettings
from fineweb_mask.models.settings.removed import REMOVED
from fineweb_mask.models.settings.validation import validated

IN_A_LIST = {
    "materialize.export.format": ("format",),
    "quality.scorers.buckets": ("buckets",),
    "quality.scorers.kind": ("kind",),
    "quality.scorers.labels.label_column": ("labels",),
    "quality.scorers.labels.positive": ("labels",),
    "quality.scorers.labels.text_column": ("labels",),
    "quality.scorers.share": ("share",),
}


@pytest.mark.parametrize("entry", REMOVED)
def test_a_setting_that_is_gone_says_in_one_line_what_to_write_instead(entry):
    key, _, value = entry.partition(": ")
    content: Any = value or "anything"
    for part in reversed(key.split(".")):
        content = [{part: content}] if part in IN_A_LIST.get(key, ()) else {part: content}
    scorer = {"kind": "column", "column": "score"}
    whole = {"workspace": "w", "source": {"path": "s"}, "quality": {"scorers": [scorer]}}
    with pytest.raises(SettingsError) as caught:
        validated(PipelineSettings, whole | content)
    assert REMOVED[entry] in [line.partition(": ")[2] for line in str(caught.value).splitlines()]
