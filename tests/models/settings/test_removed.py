"""Settings that are gone: a recipe is told what to write instead, and a workspace's record of one still loads."""

import pytest

from fineweb_mask.flows.recipe import RecipeError, load_recipe
from fineweb_mask.models.settings.removed import REMOVED, REMOVED_VALUES
from fineweb_mask.tasks.workspace.records.runs import LastRun


@pytest.mark.parametrize("key", REMOVED)
def test_a_removed_setting_is_named_with_what_to_write_instead(key: str) -> None:
    with pytest.raises(RecipeError) as raised:
        load_recipe("sample", [f"{key}=1"])
    assert str(raised.value) == f"{key}: {REMOVED[key]}"


@pytest.mark.parametrize(("key", "value"), REMOVED_VALUES)
def test_a_removed_value_is_named_with_what_to_write_instead(key: str, value: str) -> None:
    with pytest.raises(RecipeError) as raised:
        load_recipe("sample", [f"{key}={value}"])
    assert REMOVED_VALUES[key, value] in str(raised.value)


def test_the_record_of_a_run_of_an_earlier_version_loads() -> None:
    settings = load_recipe("sample").model_dump(mode="json")
    earlier = settings | {
        "embedding": settings["embedding"] | {"keep": True},
        "selection": settings["selection"] | {"blocks": "by_shard", "gist": {"distances": 8}},
        "materialize": settings["materialize"] | {"shuffle": False, "seed": 0},
    }
    assert LastRun.model_validate({"settings": earlier, "folder": "."}).settings == load_recipe("sample")
