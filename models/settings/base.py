"""Define the base class of all settings: strict, immutable, without unknown keys."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

DeviceName = Annotated[
    str, Field(description="`auto` (a GPU if there is one, else the CPU), `cpu`, `cuda` or `cuda:N`.")
]


NO_SECRET = (
    r"^(?![^]*://[^\s/@]*:(?!\d+(?:/|$))[^\s@]*@)"
    r"(?![^]*://[^]*[?&#](?:[Xx]-(?:[Aa]mz|[Gg]oog|[Mm]s)-|[Ss]ig(?:nature)?=|[^=&]*(?:[Tt]oken|[Ss]ecret|[Kk]ey)=))"
).replace("[^]", r"[\s\S]")
"""What a text in a form may be: no URL with a password, signature, token or key; for Python and JavaScript."""


def _as_form(schema: dict[str, Any]) -> None:
    """Add what Prefect needs for a form: each field's `position`, and a `pattern` that no URL with a secret fits.

    A server checks what is sent by this schema, before it stores it; the settings themselves check it later.
    """
    for position, field in enumerate(schema.get("properties", {}).values()):
        field["position"] = position
        for branch in [field, *field.get("anyOf", [])]:
            for text in (branch, branch.get("items", {})):
                if text.get("type") == "string" and not {"enum", "const"} & text.keys():
                    text.setdefault("pattern", NO_SECRET)


class Settings(BaseModel):
    """A section of the settings; an unknown key or a wrong type is an error."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        validate_default=True,
        json_schema_extra=_as_form,
        hide_input_in_errors=True,  # the input may be a URL with a password
    )
