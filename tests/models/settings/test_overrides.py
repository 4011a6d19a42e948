"""The form of what a run overrides: ten settings of a recipe, as the recipe has them."""

from pydantic import TypeAdapter

from fineweb_mask.models.settings.overrides import IN_THE_FORM, Overrides
from fineweb_mask.models.settings.reference import settings_of

SCHEMA = TypeAdapter(Overrides).json_schema()


def test_the_form_begins_with_ten_settings_in_their_order_without_values():
    fields = SCHEMA["properties"]
    meanings = {setting.key: setting.meaning for setting in settings_of()}
    assert len(IN_THE_FORM) == 10
    assert [fields[key]["position"] for key in IN_THE_FORM] == list(range(10))
    assert {key: field["description"] for key, field in fields.items()} == {key: meanings[key] for key in IN_THE_FORM}
    assert not any("default" in field for field in fields.values())
    assert "$ref" not in str(fields)
