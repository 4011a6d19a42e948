"""Validate settings, and explain each wrong value in one line that names its key and what is allowed."""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.settings.base import Settings
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
        allowed = _allowed_keys(location[:-1], settings)
        others = _elsewhere(str(location[-1]), settings)
        hint = next((f" did you mean {other!r}?" for other in others), "") or meant(location[-1], allowed, " ")
        return f"{key}: unknown setting;{hint} allowed: {', '.join(allowed)}"
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


def _elsewhere(name: str, settings: type[BaseModel]) -> Iterator[str]:
    """Yield the keys of a recipe's settings that have a name, in whichever section."""
    from fineweb_mask.models.settings.pipeline import PipelineSettings
    from fineweb_mask.models.settings.reference import settings_of

    if settings is PipelineSettings:
        yield from (one.key for one in settings_of() if one.key.rpartition(".")[2] == name and "[" not in one.key)


def _wrong_kind(key: str, problem: Mapping[str, Any]) -> str:
    section = problem["input"]
    if not isinstance(section, dict):
        return f"{key}: input should be a section with a kind, received {shown(section)}"
    kinds = KIND.sub(r"\1", problem["ctx"]["expected_tags"])
    hint = meant(section.get("kind"), re.findall("'(.*?)'", kinds))
    return f"{key}.kind: input should be one of {kinds}, received {shown(section.get('kind'))}{hint}"


def _allowed_keys(location: Sequence[int | str], model: type[BaseModel]) -> list[str]:
    branches: list[type[BaseModel]] = []
    for part in location:
        if chosen := KIND.match(str(part)):
            model = next((one for one in branches if chosen[1] in get_args(one.model_fields["kind"].annotation)), model)
        elif (field := model.model_fields.get(str(part))) is not None:
            branches = list(_sections_in(field.annotation))
            model = next(iter(branches), model)
    return list(model.model_fields)


def _sections_in(annotation: Any) -> Iterator[type[Settings]]:  # noqa: ANN401
    """Yield the classes of the sections that a setting may hold."""
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        yield annotation
    for argument in get_args(annotation):
        yield from _sections_in(argument)
