"""Arms of the probe: how they are written, and what is refused."""

import pytest

from fineweb_mask.flows.probe.arms import parse_arms
from fineweb_mask.flows.recipe import RecipeError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("random", {"name": "random", "selector": "random"}),
        ("mean_field[lamb=0.5]", {"name": "mean_field-lamb-0.5", "selector": "mean_field", "changes": {"lamb": 0.5}}),
        (
            "x = mean_field[metrics={pairwise: 1, disf: 2}, near_duplicates.weight=0,seed=3]",
            {"name": "x", "selector": "mean_field"}
            | {"changes": {"metrics": {"pairwise": 1, "disf": 2}, "near_duplicates.weight": 0, "seed": 3}},
        ),
        ("random[shuffled=0.2]", {"name": "random-shuffled-0.2", "selector": "random", "shuffled": 0.2}),
        ("data/other.parquet", {"name": "other.parquet", "path": "data/other.parquet"}),
        ("data/year=2024/a.parquet", {"name": "a.parquet", "path": "data/year=2024/a.parquet"}),
        ("theirs=s3://bucket/set/", {"name": "theirs", "path": "s3://bucket/set/"}),
    ],
)  # fmt: skip
def test_an_arm_is_a_selector_with_changes_or_a_path(text, expected):
    first, _ = parse_arms(f"{text},top_quality")
    assert first.model_dump(exclude_defaults=True) | {"changes": first.changes} == {"changes": {}} | expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("random", "at least two arms"),
        ("", "at least two arms"),
        ("random,mean_field[lamb=1", "not closed"),
        ("random,mean_field]", "not opened"),
        ("random,mean_field[lamb]", "key=value"),
        ("random,random[shuffled=2]", "less than or equal to 1"),
        ("random,a b=mean_field", "is not a name"),
        ("random,x=data/a.parquet[lamb=1]", "takes no settings in brackets"),
        ('random,mean_field[lamb="]', "must be valid YAML"),
    ],
)
def test_what_cannot_be_understood_is_named(text, message):
    with pytest.raises(RecipeError, match=message):
        parse_arms(text)
