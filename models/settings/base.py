"""Define the base class of all settings: strict, immutable, without unknown keys."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

DeviceName = Annotated[
    str, Field(description="`auto` (a GPU if there is one, else the CPU), `cpu`, `cuda` or `cuda:N`.")
]


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
