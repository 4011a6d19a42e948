"""What the flow refuses before any work, and what a recipe makes of the weights that were found."""

from typing import Any

import pytest

from fineweb_mask.flows.recipe import validate
from fineweb_mask.flows.weightings import as_overrides, check
from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.settings import PipelineSettings
from fineweb_mask.models.settings.selection import GroupSettings


def recipe(scorers: int = 3, **changes: Any) -> PipelineSettings:
    every = [
        {"model": "model.bin"},
        {"kind": "classes", "name": "topic", "model": "m"},
        {"kind": "column", "column": "length"},
    ]
    return PipelineSettings.model_validate(
        {
            "workspace": "w",
            "source": {"path": "corpus", "extra_columns": ["length"]},
            "quality": {"scorers": every[:scorers]},
            "selection": {"select_ratio": 0.1} | changes,
        }
    )


def test_a_recipe_takes_the_weights() -> None:
    found = as_overrides(recipe(), "scores", {"fasttext": 0.25004, "column": 0.74996})
    assert found == {"quality.scorers.0.weight": 0.25, "quality.scorers.2.weight": 0.75}


def test_a_recipe_takes_the_shares_which_add_up_to_1() -> None:
    found = as_overrides(recipe(), "groups", {"a": 1 / 3, "b": 1 / 3, "c": 1 / 3 - 1e-6, "d": 1e-6})
    assert found["selection.budget_by"] == "tokens"
    shares = found["selection.groups.shares"]
    assert shares.keys() == {"a", "b", "c"}  # other groups get nothing
    assert validate(GroupSettings, {"column": "topic", "shares": shares}).shares == shares


@pytest.mark.parametrize(
    ("settings", "of", "count", "message"),
    [
        (recipe(), "scores", 9, "--models must be at least 10"),
        (recipe(budget=50), "scores", 12, "set select_ratio instead"),
        (recipe(scorers=2), "scores", 12, "two scores or more to weigh, combined by weighted_sum: found fasttext"),
        (recipe(), "groups", 12, "set selection.groups.column, whose values get shares"),
    ],
)
def test_what_cannot_be_weighed_is_refused(settings: PipelineSettings, of: Any, count: int, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        check(settings, of, {}, count)
