"""Define the base class of all settings: strict, immutable, without unknown keys."""

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator

from fineweb_mask.models.urls import reject_credentials, require_writable

Text = Annotated[str, Field(min_length=1)]
"""A text that is not empty."""

Place = Annotated[Text, AfterValidator(reject_credentials)]
"""A path or URL without credentials."""

WritablePlace = Annotated[Place, AfterValidator(require_writable)]
"""A path, or a URL that can be written."""

DeviceName = Annotated[
    str,
    Field(
        pattern=r"^(auto|cpu|cuda(:\d+)?)$",
        description="`auto` (a GPU if there is one, else the CPU), `cpu`, `cuda` or `cuda:N`.",
    ),
]

LARGEST = 2**63 - 1
"""Largest number of Arrow's, NumPy's and DuckDB's integers."""

NO_SECRET = (
    r"^(?![^]*://[^\s/@]*:(?!\d+(?:/|$))[^\s@]*@)"
    r"(?![^]*://[^]*[?&#](?:[Xx]-(?:[Aa]mz|[Gg]oog|[Mm]s)-|[Ss]ig(?:nature)?=|[^=&]*(?:[Tt]oken|[Ss]ecret|[Kk]ey)=))"
).replace("[^]", r"[\s\S]")
"""What a text in a form may be: no URL with a password, signature, token or key; for Python and JavaScript."""


def _without_secret(depth: int) -> dict[str, Any]:
    """Return the schema of a value that may hold lists and sections, a number of levels deep."""
    inner = _without_secret(depth - 1) if depth else {}
    return {"pattern": NO_SECRET} | ({"items": inner, "additionalProperties": inner} if depth else {})


Overrides = Annotated[dict[str, Any], Field(json_schema_extra={"additionalProperties": _without_secret(4)})]
"""Some settings, to be set over a recipe's, by keys such as `selection.lamb` or by section."""


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

    @field_validator("*")
    @classmethod
    def _can_be_used(cls, value: Any) -> Any:  # noqa: ANN401 - of every setting
        texts = [text for text in (value if isinstance(value, list | tuple) else [value]) if isinstance(text, str)]
        if any("\0" in text for text in texts):
            raise ValueError("must hold no NUL character, which no path and no name may have")
        if isinstance(value, int) and abs(value) > LARGEST:
            raise ValueError(f"must be at most {LARGEST}")
        return value
