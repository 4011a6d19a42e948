"""Wrong settings: one line each, with key, value and what is allowed, or what to write instead."""

from typing import Any

import pytest

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.settings import PipelineSettings
from fineweb_mask.models.settings.quality import TrainQualitySettings
from fineweb_mask.models.settings.removed import REMOVED
from fineweb_mask.models.settings.selection import SelectionSettings
from fineweb_mask.models.settings.validation import validated


def test_what_is_allowed_is_returned_and_every_wrong_value_has_a_line() -> None:
    assert validated(SelectionSettings, {"lamb": 0.25}) == SelectionSettings(lamb=0.25)
    with pytest.raises(SettingsError) as caught:
        validated(SelectionSettings, {"lamb": 3, "lam": 1})
    first, second = str(caught.value).splitlines()
    assert first == "lamb: input should be less than or equal to 1, received 3"
    assert second.startswith("lam: unknown setting; did you mean 'lamb'? allowed: ")


def test_where_a_name_is_a_setting_of_another_section_the_answer_says_it() -> None:
    sample = {"workspace": "w", "source": {"path": "s", "by_group": {}}, "quality": {"scorers": []}}
    says = r"source\.by_group: unknown setting; did you mean 'selection\.quadmix\.by_g"
    with pytest.raises(SettingsError, match=says):
        validated(PipelineSettings, sample)


OF_TRAINING = ("teacher", "training.autotune_seconds")
IN_A_LIST = {
    "materialize.export.format": ("format",),
    "quality.scorers.buckets": ("buckets",),
    "quality.scorers.kind": ("kind",),
    "quality.scorers.share": ("share",),
}


@pytest.mark.parametrize("entry", REMOVED)
def test_a_setting_that_is_gone_says_in_one_line_what_to_write_instead(entry: str) -> None:
    key, _, value = entry.partition(": ")
    content: Any = value or "anything"
    for part in reversed(key.split(".")):
        content = [{part: content}] if part in IN_A_LIST.get(key, ()) else {part: content}
    if entry in OF_TRAINING:
        model, whole = TrainQualitySettings, {"labels": {"path": "labels.parquet"}}
    else:
        scorer = {"kind": "column", "column": "score"}
        model, whole = PipelineSettings, {"workspace": "w", "source": {"path": "s"}, "quality": {"scorers": [scorer]}}
    with pytest.raises(SettingsError) as caught:
        validated(model, whole | content)
    assert REMOVED[entry] in [line.partition(": ")[2] for line in str(caught.value).splitlines()]
