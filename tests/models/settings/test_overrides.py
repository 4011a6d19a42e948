"""The form of what a run overrides: ten settings of a recipe, as the recipe has them, and no secret anywhere."""

from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import TypeAdapter

from fineweb_mask.models.settings.overrides import IN_THE_FORM, Overrides
from fineweb_mask.models.settings.reference import settings_of

SCHEMA = TypeAdapter(Overrides).json_schema()


def test_the_form_begins_with_ten_settings_in_their_order_without_values() -> None:
    fields = SCHEMA["properties"]
    meanings = {setting.key: setting.meaning for setting in settings_of()}
    assert len(IN_THE_FORM) == 10
    assert [fields[key]["position"] for key in IN_THE_FORM] == list(range(10))
    assert {key: field["description"] for key, field in fields.items()} == {key: meanings[key] for key in IN_THE_FORM}
    assert not any("default" in field for field in fields.values())
    assert "$ref" not in str(fields)


@pytest.mark.parametrize(
    ("overrides", "is_allowed"),
    [
        ({}, True),
        ({"selection.lamb": 0.3, "ingest.languages": ["en"], "selection.metrics": {"disf": 1}}, True),
        ({"selection": {"lamb": 0.3}, "report.sample": 300}, True),
        ({"selection.lamb": 3}, False),
        ({"source": {"path": "https://host/file?token=abc"}}, False),
        ({"ingest.against": ["https://host/file?X-Amz-Signature=abc"]}, False),
    ],
)
def test_settings_are_taken_by_key_and_by_section_and_no_wrong_value_or_secret(
    overrides: dict[str, Any], is_allowed: bool
) -> None:
    assert Draft202012Validator(SCHEMA).is_valid(overrides) == is_allowed
