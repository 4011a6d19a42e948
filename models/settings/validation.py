"""Validate settings, and explain each wrong value in one line that names its key and what is allowed."""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.settings.removed import advice_on
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
        If a value is not allowed; the message has one line for each of the first, which names its key.
    """
    try:
        return model.model_validate(content)
    except ValidationError as error:
        problems = list(dict.fromkeys(_explain(problem, model) for problem in error.errors()))
        if len(problems) > MOST_LINES:
            problems[MOST_LINES - 1 :] = [f"and {len(problems) - MOST_LINES + 1} more: mend these first"]
        raise SettingsError("\n".join(problems)) from error


def meant(name: object, names: Iterable[str], after: str = "; ") -> str:
    """Return a question for what somebody may have meant, after a separator; nothing if no name is near.

    >>> meant("meanfield", ["mean_field", "random"]), meant("x", ["mean_field"])
    ("; did you mean 'mean_field'?", '')
    """
    close = difflib.get_close_matches(str(name).lower(), list(names), n=1)
    return f"{after}did you mean {close[0]!r}?" if close else ""


def _explain(problem: Mapping[str, Any], settings: type[BaseModel]) -> str:
    """Return one line on an error of pydantic: the key, the value received, and what is allowed."""
    location = problem["loc"]
    key = ".".join(str(part) for part in location if not UNION_BRANCH.match(str(part))) or "recipe"
    if (advice := _advice_on(key, problem)) is not None:
        return f"{key}: {advice}"
    if problem["type"] == "extra_forbidden":
        return f"{key}: unknown setting{_near(str(location[-1]), settings)}"
    if problem["type"] == "missing":
        return f"{key}: is required"
    if problem["type"].startswith("union_tag_"):
        return _wrong_kind(key, problem)
    message = str(problem["msg"]).removeprefix("Value error, ")
    if not location:  # an error about several sections, which the message names
        return message
    hint = meant(problem["input"], re.findall("'(.*?)'", message)) if problem["type"] == "literal_error" else ""
    return f"{key}: {message[0].lower()}{message[1:]}, received {shown(problem['input'])}{hint}"


def _advice_on(key: str, problem: Mapping[str, Any]) -> str | None:
    """Return what to write instead of a setting, value or kind of a section that is gone; None if it is none."""
    given = problem["input"]
    if problem["type"].startswith("union_tag_") and isinstance(given, dict):
        return advice_on(f"{key}.kind", given.get("kind"))
    return advice_on(key, given)


def _near(name: str, settings: type[BaseModel]) -> str:
    """Return which setting may be meant by a name: the key of one of that name in another section, or a like one."""
    from fineweb_mask.models.settings.pipeline import PipelineSettings
    from fineweb_mask.models.settings.reference import KINDS, sections, settings_of

    if settings is not PipelineSettings:
        return meant(name, _names_in(settings))
    keys = {KINDS.sub("", one.key).rpartition(".")[2]: KINDS.sub("", one.key) for one in settings_of()}
    hint = meant(keys.get(name, name), [keys[name]] if name in keys else [*keys, *sections()])
    return f"{hint or ';'} all settings: `fineweb-mask settings`"


def _names_in(settings: type[BaseModel]) -> Iterator[str]:
    for name, field in settings.model_fields.items():
        yield name
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _names_in(field.annotation)


def _wrong_kind(key: str, problem: Mapping[str, Any]) -> str:
    section = problem["input"]
    if not isinstance(section, dict):
        return f"{key}: input should be a section with a kind, received {shown(section)}"
    kinds = KIND.sub(r"\1", problem["ctx"]["expected_tags"])
    hint = meant(section.get("kind"), re.findall("'(.*?)'", kinds))
    return f"{key}.kind: input should be one of {kinds}, received {shown(section.get('kind'))}{hint}"
