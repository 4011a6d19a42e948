"""Validate settings, and explain each wrong value in one line that names its key and what is allowed."""

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.settings.pipeline import PipelineSettings
from fineweb_mask.models.settings.removed import instead_of, instead_of_value, sections_in
from fineweb_mask.models.urls import shown

MOST_LINES = 3
"""Of an error: who reads it sees the first of them."""
UNION_BRANCH = re.compile(r"(literal|list|dict|kind)\[|\[key\]$")
"""Parts of pydantic's error locations that name a branch of a union and not a key."""
KIND = re.compile(r"kind\[(.*?)\]")
"""The branch of a union of settings that a `kind` names."""

Model = TypeVar("Model", bound=BaseModel)


def validated(model: type[Model], content: Mapping[str, Any]) -> Model:
    """Return settings of type `model` with the values of `content`.

    Raises
    ------
    SettingsError
        If a value is not allowed; the message has one line for each of the first, which names its key. Of a setting or
        a value that is gone, it says what to write instead.
    """
    try:
        return model.model_validate(content)
    except ValidationError as error:
        found = [(_key(problem), _gone(problem, model), problem) for problem in error.errors()]
        gone = {key for key, line, _ in found if line is not None}
        problems = [line or _explain(problem, model) for key, line, problem in found if line or key not in gone]
        problems = list(dict.fromkeys(problems))
        if len(problems) > MOST_LINES:
            problems[MOST_LINES - 1 :] = [f"and {len(problems) - MOST_LINES + 1} more: mend these first"]
        raise SettingsError("\n".join(problems)) from error


def _key(problem: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the parts of the key that an error of pydantic is about."""
    is_name = problem["loc"][-1:] == ("[key]",)  # of an item of a mapping, such as a metric
    parts = tuple(str(part) for part in problem["loc"] if not UNION_BRANCH.match(str(part)))
    return parts[:-1] if is_name else parts


def _gone(problem: Mapping[str, Any], model: type[BaseModel]) -> str | None:
    """Return one line on a setting or a value that an earlier version had; None if the error is another."""
    key, value = _key(problem), problem["input"]
    if problem["type"] == "union_tag_invalid":
        key, value = (*key, "kind"), value.get("kind")
    whole = (*_section_of(model), *key)
    if problem["type"] == "extra_forbidden":
        text = instead_of(whole)
        return None if text is None else f"{'.'.join(key)}: is no setting any more: {text}"
    text = instead_of_value(whole, value)
    return None if text is None else f"{'.'.join(key)}: {shown(value)} is gone: {text}"


def _section_of(model: type[BaseModel]) -> list[str]:
    """Return the name of the section of a recipe that a class is the settings of, if it is one."""
    sections = PipelineSettings.model_fields.items()
    return [name for name, field in sections if model in getattr(field.annotation, "__mro__", ())][:1]


def _explain(problem: Mapping[str, Any], settings: type[BaseModel]) -> str:
    """Return one line on an error of pydantic: the key, the value received, and what is allowed."""
    location = problem["loc"]
    key = ".".join(str(part) for part in location if not UNION_BRANCH.match(str(part))) or "recipe"
    if problem["type"] == "extra_forbidden":
        allowed = _allowed_keys(location[:-1], settings)
        close = difflib.get_close_matches(str(location[-1]), allowed, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        return f"{key}: unknown setting; {hint}allowed: {', '.join(allowed)}"
    if problem["type"] == "missing":
        return f"{key}: is required"
    if problem["type"].startswith("union_tag_"):
        return _wrong_kind(key, problem)
    message = str(problem["msg"]).removeprefix("Value error, ")
    if not location:  # an error about several sections, which the message names
        return message
    return f"{key}: {message[0].lower()}{message[1:]}, received {shown(problem['input'])}"


def _wrong_kind(key: str, problem: Mapping[str, Any]) -> str:
    section = problem["input"]
    if not isinstance(section, dict):
        return f"{key}: input should be a section with a kind, received {shown(section)}"
    kinds = KIND.sub(r"\1", problem["ctx"]["expected_tags"])
    return f"{key}.kind: input should be one of {kinds}, received {shown(section.get('kind'))}"


def _allowed_keys(location: Sequence[int | str], model: type[BaseModel]) -> list[str]:
    branches: list[type[BaseModel]] = []
    for part in location:
        if chosen := KIND.match(str(part)):
            model = next((one for one in branches if chosen[1] in get_args(one.model_fields["kind"].annotation)), model)
        elif (field := model.model_fields.get(str(part))) is not None:
            branches = [section for section, _ in sections_in(field.annotation)]
            model = next(iter(branches), model)
    return list(model.model_fields)
