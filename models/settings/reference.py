"""Describe every setting: its key, type, default and meaning, from the JSON schema of a recipe.

>>> next(setting for setting in settings_of("selection") if setting.key == "selection.lamb")
Setting(key='selection.lamb', type='number from 0 to 1', default='0.3', meaning='Weight of quality; 1 - lamb is \
the weight of diversity.')
"""

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.settings.pipeline import PipelineSettings
from fineweb_mask.models.settings.validation import meant

REQUIRED = "required"
WORDS = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "null": "null",
    "object": "mapping",
}
KINDS = re.compile(r"\[(.*?)\]")
"""The kinds of sections that have a setting, in its key."""
JsonSchema = Mapping[str, Any]


class Setting(NamedTuple):
    """One setting of a recipe."""

    key: str  # sections and name with dots between; [kind, kind] where only scorers of these kinds have it, [*] for all
    type: str
    default: str  # in JSON, which is YAML; `required` if there is none
    meaning: str


@cache
def recipe_schema() -> JsonSchema:
    """Return the JSON schema of a recipe, for editors."""
    schema = PipelineSettings.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "A fineweb-mask recipe", **schema}


def sections() -> list[str]:
    """Return the names of a recipe's sections, in their order."""
    return [name for name, schema in recipe_schema()["properties"].items() if "$ref" in schema]


def settings_of(key: str | None = None) -> list[Setting]:
    """Return the settings of a section, one setting with its own, or all, in the order of the recipe.

    Parameters
    ----------
    key
        A section, or a setting such as `selection.lamb` or `lamb`; of a scorer's, without its kind.

    Raises
    ------
    SettingsError
        If there is no such section or setting.
    """
    every = _every_setting()
    if key is None:
        return list(every)
    names = {one: KINDS.sub("", one.key) for one in every}
    found = [one for one, name in names.items() if f"{name}.".startswith(f"{key}.")]
    if not found:
        found = [one for one, name in names.items() if name.endswith(f".{key}") or f".{key}." in name]
    if not found:
        known = [*sections(), *names.values(), *(name.rpartition(".")[2] for name in names.values())]
        hint = f" ({close})" if (close := meant(key, known, "")) else ""
        raise SettingsError(f"there is no setting {key!r}{hint}: name one, or a section: {', '.join(sections())}")
    return found


@cache
def _every_setting() -> tuple[Setting, ...]:
    return tuple(_walk(recipe_schema(), recipe_schema()["$defs"]))


def _walk(schema: JsonSchema, defined: JsonSchema, prefix: str = "") -> Iterator[Setting]:
    for name, field in schema["properties"].items():
        key = f"{prefix}{name}"
        nested = [defined[reference] for reference in _nested(field)]
        if not nested or "description" in field:
            yield _setting(key, field, is_required=name in schema.get("required", ()))
        kinds = {kind: one for one in nested if (kind := one["properties"].get("kind", {}).get("const"))}
        if kinds:
            yield from _of_kinds(key, {kind: list(_walk(one, defined)) for kind, one in kinds.items()})
            continue
        for section in nested:
            if not section["properties"].keys() <= schema["properties"].keys():  # those are described already
                yield from _walk(section, defined, f"{key}.")


def _of_kinds(section: str, kinds: Mapping[str, list[Setting]]) -> Iterator[Setting]:
    """Yield the settings of a section, by its kinds; what several of these have in common, once."""
    common: dict[Setting, dict[str, Setting]] = {}
    for kind, settings in kinds.items():
        for one in settings:
            default = "" if one.default == json.dumps(kind) else one.default  # its meaning says so
            own_type = one.type if one.type != kind else ""
            common.setdefault(one._replace(default=default, type=own_type), {})[kind] = one
    for one, of_kinds in common.items():
        names = "*" if len(of_kinds) == len(kinds) else ", ".join(of_kinds)
        yield one._replace(key=f"{section}[{names}].{one.key}", type=one.type or " | ".join(of_kinds))


def _nested(field: JsonSchema) -> Iterator[str]:
    """Yield the names of the schemas of a field's own fields; of several, it takes one."""
    if "$ref" in field:
        yield field["$ref"].rpartition("/")[2]
    branches = (field.get(name, ()) for name in ("anyOf", "oneOf", "allOf"))
    for part in (*chain.from_iterable(branches), field.get("items"), field.get("additionalProperties")):
        if isinstance(part, Mapping):
            yield from _nested(part)


def _setting(key: str, field: JsonSchema, *, is_required: bool) -> Setting:
    default = REQUIRED if is_required else json.dumps(field["default"]) if "default" in field else ""
    own_fields = default.startswith("{") and any(_nested(field))
    return Setting(key, _type(field), "" if own_fields else default, str(field.get("description", "")))


def _type(field: JsonSchema) -> str:
    if "$ref" in field:
        return "section"
    if values := [field["const"]] if "const" in field else field.get("enum"):
        return " | ".join(json.dumps(one).strip('"') for one in values)
    if branches := field.get("anyOf", field.get("oneOf")):
        return " or ".join(dict.fromkeys(map(_type, branches)))
    if field.get("type") == "array":
        return f"list of {_type(field.get('items', {}))}"
    if isinstance(values := field.get("additionalProperties"), Mapping):
        return f"mapping to {_type(values)}"
    return f"{WORDS.get(str(field.get('type')), 'any value')}{_bounds(field)}"


def _bounds(field: JsonSchema) -> str:
    ends = {
        "from {}": field.get("minimum"),
        "above {}": field.get("exclusiveMinimum"),
        "to {}": field.get("maximum"),
        "below {}": field.get("exclusiveMaximum"),
    }
    return "".join(" " + words.format(f"{end:,.10g}") for words, end in ends.items() if end is not None)
