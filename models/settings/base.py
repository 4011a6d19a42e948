"""The one base class of every settings model: strict, immutable, and closed to unknown keys."""

from typing import Any

from pydantic import BaseModel, ConfigDict


def _in_order(schema: dict[str, Any]) -> None:
    """Give every field its place in the declaration: a form drawn from the schema, such as Prefect's, sorts by it."""
    for position, field in enumerate(schema.get("properties", {}).values()):
        field["position"] = position


class Settings(BaseModel):
    """A section of the settings; an unknown key or a wrong type is an error, never ignored."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        validate_default=True,
        json_schema_extra=_in_order,
        hide_input_in_errors=True,  # it may be a URL with a password, which a log is to be spared
    )
