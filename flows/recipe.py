"""Read a recipe: a YAML file and `--set` overrides become settings, or an error that names the key to change."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml
from pydantic import BaseModel

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.settings import PipelineSettings
from fineweb_mask.models.settings.embedding import FROM_QUALITY, STATIC
from fineweb_mask.models.settings.validation import meant, validated
from fineweb_mask.models.urls import is_url, redacted, shown

INPUTS = (
    "source.path",
    "ingest.filters.*.options.model",
    "ingest.against.*",
    "ingest.exclude.*",
    "ingest.decontaminate.*",
    "quality.scorers.*.model",
    "quality.scorers.*.labels.path",
    "quality.scorers.*.path",
    "embedding.model",
    "selection.targets.path",
    "materialize.export.*.tokenizer",
)
"""Settings that may name a file or folder that is read; `*` is every item of a list."""
OF_THE_SOURCE = ("title", "license", "source_datasets")
"""Settings of `materialize` that describe the recipe's own source."""

PACKAGED = Path(str(resources.files("fineweb_mask") / "deployments" / "recipes"))

Refit = Literal["encoder", "quality", "selection"]
"""What can be fitted again on the corpus as it is now."""
Until = Literal["ingest", "dedup", "score", "embed", "select", "materialize", "export", "report"]
"""Stages that a run can stop after, in the order in which it comes to them; after the last it ends anyway."""

Model = TypeVar("Model", bound=BaseModel)


class RecipeError(SettingsError):
    """The recipe, an override or an option is not valid."""


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice in one section, of which YAML takes the last without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return the section of a node."""
        seen = set[str]()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen and key.tag != "tag:yaml.org,2002:merge":
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is given twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _read_yaml(text: str) -> Any:  # noqa: ANN401
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


NOT_YAML = (yaml.YAMLError, ValueError, RecursionError)
"""Errors of reading YAML: also of text that is not UTF-8, a date such as 2024-99-99, or nesting without an end."""


def load_recipe(
    path: str | Path, overrides: Sequence[str] | Mapping[str, Any] = (), workspace: str | None = None
) -> PipelineSettings:
    """Return the settings in a recipe file.

    Parameters
    ----------
    path
        YAML file with the sections of `PipelineSettings`. A name such as `fineweb` that is no file here means the
        recipe of that name in the package. A relative path in it, of a file or folder to read, starts from the recipe's
        folder; if nothing is there, from the working folder, as the workspace and the paths of overrides do.
    overrides
        `section.key=value`, the value in YAML; a number is an index of a list. Or sections with some settings, as
        `with_overrides` takes them. With another `source.path`, the recipe's title, licence and source data sets are
        left out: they describe its own source.
    workspace
        Workspace folder or URL that replaces the recipe's.

    Raises
    ------
    RecipeError
        If the file cannot be read, or has a key or value that is not allowed.
    """
    packaged = packaged_recipes().get(str(path).removesuffix(".yaml"))
    name, advice = repr(str(path)), _if_documents(path)
    try:
        file = Path(path) if packaged is None or Path(path).is_file() else packaged
        content = _read_yaml(file.read_text(encoding="utf-8"))
    except OSError as error:
        is_missing = isinstance(error, FileNotFoundError)
        names = packaged_recipes()
        hint = meant(Path(path).stem, names)
        others = f"{hint or ';'} recipes that need no file: {', '.join(names)}" if is_missing else advice
        raise RecipeError(f"cannot read the recipe {name}: {error.strerror}{others}") from error
    except NOT_YAML as error:
        raise RecipeError(f"the recipe {name} is not valid YAML: {redacted(_problem(error))}{advice}") from error
    if not isinstance(content, dict):
        raise RecipeError(f"the recipe {name} must hold sections such as `source:`, it holds {shown(content)}{advice}")
    for section, key, value in _inputs(content):
        section[key] = _from_folder(file.resolve().parent, value)
    sections = overrides if isinstance(overrides, Mapping) else {}
    _describe_another_source(content, [parse_value(override) for override in overrides if not sections])
    if workspace is not None:
        content["workspace"] = workspace
    return with_overrides(validate(PipelineSettings, content), sections)


def _if_documents(path: str | Path) -> str:
    """Return what to do if a file that is no recipe was meant as documents: nothing if it is named as a recipe."""
    if str(path).endswith((".yaml", ".yml")):
        return ""
    return (
        "; of documents in .parquet, .jsonl or .warc.gz `fineweb-mask run` makes one, and `fineweb-mask init` one to "
        "be edited; convert others, a .csv by `python -c \"import duckdb; duckdb.read_csv('x.csv').write_parquet("
        "'x.parquet')\"`"
    )


def _problem(error: Exception) -> str:
    """Return what is wrong with a text of YAML, in one line."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}: {' '.join(filter(None, (error.context, error.problem)))}"
    return " ".join(str(error).split())


def with_overrides(settings: PipelineSettings, overrides: Mapping[str, Any] | None) -> PipelineSettings:
    """Return settings with others in their place, by section.

    Parameters
    ----------
    settings
        The recipe.
    overrides
        `{"selection": {"lamb": 0.3}}`: a section's other settings stay; a value that is not a section is replaced. As
        with `load_recipe`, another `source.path` leaves out what describes the recipe's own source.

    Raises
    ------
    RecipeError
        If a key or value is not allowed.
    """
    if not overrides:
        return settings
    content = settings.model_dump(mode="json", exclude_unset=True)
    _describe_another_source(content, list(_by_key(overrides, settings)))
    return validate(PipelineSettings, content)


def _by_key(overrides: Mapping[str, Any], section: BaseModel, before: str = "") -> Iterable[tuple[str, Any]]:
    """Yield values by keys such as `section.key`."""
    for key, value in overrides.items():
        current = getattr(section, key, None)
        if isinstance(value, Mapping) and isinstance(current, BaseModel):
            yield from _by_key(value, current, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def _describe_another_source(content: dict[str, Any], values: Sequence[tuple[str, Any]]) -> None:
    """Set values; leave out what describes the recipe's own source if they name another one."""
    own, section = _path_of(content), content.get("materialize")
    change(content, values)
    if isinstance(section, dict) and _path_of(content) != own:
        given = {key.removeprefix("materialize.") for key, _ in values}
        for name in set(OF_THE_SOURCE).difference(given):
            section.pop(name, None)


def _path_of(content: Mapping[str, Any]) -> Any:  # noqa: ANN401
    source = content.get("source")
    return source.get("path") if isinstance(source, dict) else None


def packaged_recipes() -> dict[str, Path]:
    """Return the recipes of the package, by name."""
    return {file.stem: file for file in sorted(PACKAGED.glob("*.yaml"))}


def _inputs(content: Any) -> Iterator[tuple[Any, Any, str]]:  # noqa: ANN401
    """Yield what `INPUTS` name in the content of a recipe, each with the section or list that holds it and its key."""
    for key in INPUTS:
        for section, place in _places(content, key.split(".")):
            value = section[place]
            if isinstance(value, str) and value not in {STATIC, FROM_QUALITY}:
                yield section, place, value


def _places(section: Any, keys: Sequence[str]) -> Iterator[tuple[Any, Any]]:  # noqa: ANN401
    """Yield the sections or lists below a section that hold what keys lead to, each with the last key or index."""
    key, *below = keys
    places: Iterable[Any] = ()
    if key == "*" and isinstance(section, list):
        places = range(len(section))
    elif isinstance(section, dict) and key in section:
        places = (key,)
    for place in places:
        if below:
            yield from _places(section[place], below)
        else:
            yield section, place


def _from_folder(folder: Path, path: str) -> str:
    """Have a relative path start from the recipe's folder, if something is there."""
    if not path or is_url(path) or Path(path).is_absolute() or folder == Path.cwd() or not _is_there(folder, path):
        return path
    whole = os.path.normpath(folder / path)
    here = os.path.relpath(whole)
    return whole if here.startswith(os.pardir) else here


def _is_there(folder: Path, path: str) -> bool:
    """Return whether a path in a folder leads to something; it may be a glob, or have {shard} in a file's name."""
    start = path.partition("{shard}")[0]
    try:
        return (folder / start).exists() or any(True for _ in folder.glob(start))
    except (OSError, ValueError):  # not a path
        return False


def inputs_of(settings: PipelineSettings) -> list[str]:
    """Return the files, folders, patterns and URLs that settings name to be read, and names of models on the hub."""
    return [value for _, _, value in _inputs(settings.model_dump(mode="json"))]


def validate(model: type[Model], content: Mapping[str, Any]) -> Model:
    """Return settings of type `model` with the values of `content`.

    Raises
    ------
    RecipeError
        If a value is not allowed; the message has one line for each of the first, which names its key.
    """
    try:
        return validated(model, content)
    except SettingsError as error:
        raise RecipeError(str(error)) from error


def as_parameters(path: str) -> dict[str, Any]:
    """Return a recipe as the parameters of a flow: a build step of `prefect.yaml`, so that it repeats no settings."""
    return {"settings": load_recipe(path).model_dump(mode="json", exclude_unset=True)}


def parse_value(text: str) -> tuple[str, Any]:
    """Return the key and the value of `section.key=value`, whose value is YAML.

    Raises
    ------
    RecipeError
        If it has another form.
    """
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise RecipeError(f"--set takes section.key=value, received {shown(text)}")
    try:
        return key, _read_yaml(value)
    except NOT_YAML as error:
        raise RecipeError(f"--set {key}: the value must be valid YAML, received {shown(value)}") from error


def change(content: dict[str, Any], values: Iterable[tuple[str, Any]]) -> None:
    """Set values in nested sections by keys such as `section.key`; a number is an index of a list.

    Raises
    ------
    RecipeError
        If a key leads through something else than a section.
    """
    for key, value in values:
        *sections, last = key.split(".")
        target: Any = content
        try:
            for part in sections:
                target = _child(target, part)
            target[_index(target, last) if isinstance(target, list) else last] = value
        except KeyError as error:
            raise RecipeError(f"--set {key}: {error.args[0]}") from error


def _child(target: Any, part: str) -> Any:  # noqa: ANN401
    child = target[_index(target, part)] if isinstance(target, list) else target.setdefault(part, {})
    if child is None and isinstance(target, dict):
        child = target[part] = {}
    if not isinstance(child, dict | list):
        raise KeyError(f"{part!r} is not a section, its value is {shown(child)}")
    return child


def _index(target: list[Any], part: str) -> int:
    if not part.isdecimal() or int(part) >= len(target):
        raise KeyError(f"{part!r} must be an index of the list, from 0 to {len(target) - 1}")
    return int(part)
