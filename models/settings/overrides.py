"""Define `Overrides`: some settings instead of a recipe's, for which Prefect draws a form that begins with ten."""

from typing import Annotated, Any

from pydantic import Field, WithJsonSchema

from fineweb_mask.models.settings.base import NO_SECRET
from fineweb_mask.models.settings.pipeline import PipelineSettings

IN_THE_FORM = (
    "workspace",
    "source.path",
    "ingest.languages",
    "ingest.near_dedup",
    "embedding.model",
    "selection.select_ratio",
    "selection.lamb",
    "selection.metrics",
    "materialize.output",
    "report.by",
)
"""The settings that are changed most between two runs of a recipe."""

FIRST_IN_FORM: Any = Field({}, json_schema_extra={"position": -1})
"""Default of a flow's parameter that its form begins with: nothing is overridden."""


def _value_without_secret(depth: int) -> dict[str, Any]:
    """Return the schema of a value that may hold lists and sections, a number of levels deep."""
    kinds: list[dict[str, Any]] = [
        {"type": "string", "pattern": NO_SECRET},
        *({"type": name} for name in ("number", "boolean", "null")),
    ]
    if depth:
        inner = _value_without_secret(depth - 1)
        kinds += [{"type": "array", "items": inner}, {"type": "object", "additionalProperties": inner}]
    return {"anyOf": kinds}


def _form() -> dict[str, Any]:
    """Return the schema of what may be overridden: the fields of the form as the recipe has them, and any other."""
    schema, fields = PipelineSettings.model_json_schema(), {}
    for position, key in enumerate(IN_THE_FORM):
        field = schema
        for name in key.split("."):
            field = schema["$defs"].get(field.get("$ref", "").rpartition("/")[2], field)["properties"][name]
        kept = {name: value for name, value in field.items() if name != "default"}  # what is left empty is the recipe's
        fields[key] = kept | {"title": key, "position": position}
    return {"type": "object", "properties": fields, "additionalProperties": _value_without_secret(4)}


Overrides = Annotated[
    dict[str, Any],
    Field(description="Settings instead of the recipe's: `{\"selection.lamb\": 0.3}`; what is empty is the recipe's."),
    WithJsonSchema(_form()),
]
"""Some settings, to be set over a recipe's, by keys such as `selection.lamb` or by section."""
