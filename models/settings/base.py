"""Define the base class of all settings: strict, immutable, without unknown keys."""

from typing import Any

from pydantic import BaseModel, ConfigDict


def _in_order(schema: dict[str, Any]) -> None:
    """Add each field's `position` in the declaration, by which Prefect sorts its form."""
    for position, field in enumerate(schema.get("properties", {}).values()):
        field["position"] = position


class Settings(BaseModel):
    """A section of the settings; an unknown key or a wrong type is an error."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        validate_default=True,
        json_schema_extra=_in_order,
        hide_input_in_errors=True,  # the input may be a URL with a password
    )
