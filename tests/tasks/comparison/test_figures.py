"""Figures of a selection over its blocks."""

import pytest

from fineweb_mask.models.settings.selection import METRICS
from fineweb_mask.tasks.comparison.figures import over_blocks


def test_figures_over_blocks_are_weighted() -> None:
    measures = {"mean_quality": 1.0, **dict.fromkeys(METRICS, -2.0), "facility": 0.5, "near_duplicates": 0.5}
    block = {"documents": 10, "selected": 5, "tokens_selected": 7, "objective": 0.5, "random_objective": 0.0,
             "upper_bound": 0.6, "terms": {"diversity": 0.2}, "measures": measures}  # fmt: skip
    other = block | {"documents": 30, "selected": 10, "objective": 0.9, "upper_bound": 1.0,
                     "measures": measures | {"mean_quality": 4.0, "facility": 0.1}}  # fmt: skip
    found = over_blocks([block, other])
    assert found["mean_quality"] == pytest.approx(3.0)
    assert found["facility"] == pytest.approx(0.2)
    assert found["objective"] == pytest.approx(0.8)
    assert found["gap"] == pytest.approx(0.1 / 0.9)
    assert (found["selected"], found["tokens"]) == (15, 14)
    assert over_blocks([block, other | {"upper_bound": None}])["gap"] is None
