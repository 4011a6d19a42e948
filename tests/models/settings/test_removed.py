"""Settings that are gone: an error says what to write instead."""

import json

import pytest

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.settings import PipelineSettings
from fineweb_mask.models.settings.removed import REMOVED, REMOVED_VALUES, instead_of
from fineweb_mask.models.settings.selection import SelectionSettings
from fineweb_mask.models.settings.validation import validated

RECIPE = {"workspace": "w", "source": {"path": "p"}, "quality": {"scorers": [{"name": "a", "model": "m.bin"}]}}


def recipe_with(key, value):
    """Return the recipe with a value at a key, whose `*` are the first item of a list or a name."""
    content = json.loads(json.dumps(RECIPE))
    target, parts = content, key.split(".")
    for part, after in zip(parts, [*parts[1:], ""], strict=True):
        place = part
        if part == "*" and isinstance(target, list):
            place = 0
            target.extend({} for _ in range(1 - len(target)))
        if not after:
            target[place] = value
        else:
            target = (
                target.setdefault(place, [] if after == "*" and part == "scorers" else {})
                if isinstance(target, dict)
                else target[place]
            )
    if key.startswith("selection.quad.scorer."):
        content["selection"]["quad"]["scorer"]["kind"] = "edu"
    if key.startswith("selection.targets."):
        content["selection"]["targets"]["path"] = "examples.parquet"
    return content


def message_of(content):
    with pytest.raises(SettingsError) as caught:
        validated(PipelineSettings, content)
    return str(caught.value)


@pytest.mark.parametrize("key", REMOVED)
def test_a_recipe_that_names_a_removed_setting_is_told_what_to_write_instead_in_one_line(key):
    content = recipe_with(key, 1)
    message = message_of(content)
    named = key.replace("scorers.*", "scorers.0")
    assert message == f"{named}: is no setting any more: {REMOVED[key]}"


@pytest.mark.parametrize(("key", "value"), REMOVED_VALUES)
def test_a_recipe_with_a_removed_value_is_told_what_to_write_instead_in_one_line(key, value):
    named = key.replace("*", "0")
    expected = f"{named}: {value!r} is gone: {REMOVED_VALUES[key, value]}"
    assert message_of(recipe_with(key, value)) == expected


@pytest.mark.parametrize("metric", ["logdet", "vendi"])
def test_a_removed_metric_of_several_is_named_once(metric):
    message = message_of(recipe_with("selection.metrics", {"pairwise": 1, metric: 2}))
    assert message == f"selection.metrics: {metric!r} is gone: {REMOVED_VALUES['selection.metrics', metric]}"


def test_other_errors_keep_their_lines():
    content = recipe_with("selection.d4", {"keep": "hard"})
    content["selection"] |= {"lamb": 3, "bogus": 1}
    first, second, third = message_of(content).splitlines()
    assert first.startswith("selection.lamb: input should be less than or equal to 1")
    assert {second[:13], third[:13]} == {"selection.d4:", "selection.bog"}


def test_options_of_a_selection_alone_are_known_by_their_section():
    with pytest.raises(SettingsError, match=r"^quality_weights: is no setting any more: .* pass quality_weights"):
        validated(SelectionSettings, {"quality_weights": [1.0]})


def test_a_constant_is_named_with_its_value():
    assert (
        instead_of(["selection", "quadmix", "by_group", "en", "floor"])
        == "it is 0.001 for all recipes now: leave it out"
    )
    assert instead_of(["selection", "lamb"]) is None
