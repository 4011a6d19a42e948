"""The arms by which weights of scores are learned, and what a recipe makes of the weights."""

from typing import Any

import numpy as np
import pytest

from fineweb_mask.flows.probe.probe import arm_settings
from fineweb_mask.flows.probe.score_weights import as_overrides, weighted_arms
from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.selection import SelectorInputs, select
from fineweb_mask.models.settings import PipelineSettings


def recipe(**selection: Any) -> PipelineSettings:
    return PipelineSettings.model_validate(
        {
            "workspace": "w",
            "source": {"path": "corpus", "extra_columns": ["length"]},
            "quality": {
                "scorers": [
                    {"model": "model.bin"},
                    {"kind": "classes", "name": "topic", "model": "m"},
                    {"kind": "column", "column": "length"},
                ]
            },
            "selection": {"select_ratio": 0.1} | selection,
        }
    )


def test_each_arm_selects_the_documents_of_the_highest_weighted_scores() -> None:
    settings = recipe()
    arms = weighted_arms(settings, 12)
    assert len({arm.name for arm in arms}) == 12
    random = np.random.default_rng(0)
    vectors, scores = random.normal(size=(500, 4)), {name: random.normal(size=500) for name in ("fasttext", "column")}
    for arm in arms[:3]:
        chosen = arm_settings(settings.selection, arm).model_copy(update={"solver": arm.selector})
        found = select(vectors, np.zeros(500), chosen, also=SelectorInputs(scores=scores))
        weights = arm.changes["quadmix"]["weights"]
        assert weights.keys() == scores.keys()  # classes are no quality
        standardised = {name: (column - column.mean()) / column.std() for name, column in scores.items()}
        merged = sum(weight * standardised[name] for name, weight in weights.items())
        assert len(set(found.indices) & set(np.argsort(-merged)[:50])) >= 48  # the last one is drawn


def test_a_recipe_takes_the_weights() -> None:
    found = as_overrides(recipe(), {"fasttext": 0.25, "column": 0.75})
    assert found == {"quality.scorers.0.weight": 0.25, "quality.scorers.2.weight": 0.75}


@pytest.mark.parametrize(
    ("settings", "count", "message"),
    [
        (recipe(), 9, "--models must be at least 10"),
        (recipe(budget=50), 12, "set select_ratio instead"),
        (
            recipe().model_copy(
                update={"quality": recipe().quality.model_copy(update={"scorers": recipe().quality.scorers[:2]})}
            ),
            12,
            "two scores or more to weigh, found 1",
        ),
    ],
)
def test_what_cannot_be_weighed_is_refused(settings: PipelineSettings, count: int, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        weighted_arms(settings, count)
