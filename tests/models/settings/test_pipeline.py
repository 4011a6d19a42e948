"""A recipe: closed and strict, with valid defaults."""

from copy import deepcopy

import pytest
from pydantic import ValidationError

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.settings import PipelineSelectionSettings, PipelineSettings
from fineweb_mask.models.settings.validation import validated

MINIMAL = {
    "workspace": "workspaces/x",
    "source": {"path": "corpus"},
    "quality": {"scorers": [{"model": "model.bin"}]},
}


def recipe(settings):
    """Return the smallest recipe with these settings, by keys such as `selection.lamb`."""
    content = deepcopy(MINIMAL)
    for key, value in settings.items():
        *sections, name = key.split(".")
        inner = content
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[name] = value
    return content


def parsed(settings):
    return PipelineSettings.model_validate(recipe(settings))


def problem_of(content):
    with pytest.raises(ValidationError, match="1 validation error") as caught:
        PipelineSettings.model_validate(content)
    [problem] = caught.value.errors()
    return ".".join(str(part) for part in problem["loc"]), problem["type"]


def test_an_unknown_key_is_refused_and_one_without_a_default_required():
    assert parsed({}).selection == PipelineSelectionSettings()
    assert problem_of(recipe({"ingest.bogus": 1})) == ("ingest.bogus", "extra_forbidden")
    for missing in MINIMAL:
        assert problem_of({key: value for key, value in MINIMAL.items() if key != missing}) == (missing, "missing")


IMPOSSIBLE = {
    "workspace": ["https://example.org/x", "hf://datasets/x/y", "", "a\0b"],
    "ingest.min_chars": ["many", 1.5, 0],
    "ingest.near_dedup": [0, 1.01, float("nan")],
    "ingest.copies.prefer": [{"a": ["x"], "b": ["y"]}],
    "ingest.copies.prefer.a": ["x"],
    "embedding.model": [3, ""],
    "embedding.max_tokens": [[1], 0],
    "ingest.on_wiped_group": ["ask"],
    "selection.select_ratio": ["a quarter", 0, 1.5],
    "selection.lamb": [-0.1, float("nan")],
    "selection.solver": ["magic"],
    "selection.block_size": [0],
    "materialize.file_size": [1000],
    "materialize.output": ["https://example.org/x"],
    "engine.memory_limit": ["lots", "2GB'; DROP TABLE x; --"],
    "engine.workers": [{}, 0, 65],
}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in IMPOSSIBLE.items() for value in values])
def test_a_wrong_type_and_an_impossible_value_are_refused_by_key(key, value):
    assert problem_of(recipe({key: value}))[0] == key


NO_SCORERS, BY_GROUP = {"quality.scorers": []}, {"selection.groups.column": "dump"}
CONTRADICTIONS = [  # what is allowed, what contradicts it, and the message
    ({"selection.solver": "top_quality"}, NO_SCORERS, "selection.solver: top_quality: .* alone: set quality.scorers"),
    ({"selection.solver": "odis"}, NO_SCORERS, "it reads the columns of scorers"),
    ({"selection.lamb": 1}, NO_SCORERS, "selection.lamb: 1 is for quality alone, .* is empty: lower it"),
    ({}, {"selection.groups.column": "text"}, "selection.groups.column: .* 'text': the text itself cannot be a group"),
    ({"report.by": ["text_of"]}, {"report.by": ["text"]}, r"report\.by\.0: .* 'text': the text itself cannot be"),
    ({"selection.groups.column": "body"}, {"source.text_column": "body"}, "received 'body': the text itself cannot be"),
    (BY_GROUP, {"selection.budget": 500}, "budget, 500, is what every block gives: use select_ratio"),
    ({"report.by": ["dump"]}, {"report.by": ["dump", "text"]}, "report.by.1: .* 'text': the text itself cannot be a"),
]


@pytest.mark.parametrize(("allowed", "added", "says"), CONTRADICTIONS, ids=lambda value: str(value)[:40])
def test_settings_that_contradict_each_other_are_refused_in_one_line(allowed, added, says):
    parsed(allowed)
    with pytest.raises(SettingsError, match=says) as error:
        validated(PipelineSettings, recipe(allowed | added))
    assert "\n" not in str(error.value)


def test_blocks_are_of_alike_documents_where_gains_are_compared_and_groups_have_no_budgets():
    others = ({"selection.solver": "semdedup"}, BY_GROUP, {"selection.blocks": "order"})
    by_likeness = [parsed(changes).selection.by_likeness for changes in ({}, {"selection.solver": "greedy"}, *others)]
    assert by_likeness == [True, True, False, False, False]
