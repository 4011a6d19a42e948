"""Make a command, a Python function and a Prefect flow of one function of a recipe's settings."""

import inspect
import re
import sys
from collections.abc import Callable, Mapping
from copy import copy
from functools import cached_property, update_wrapper, wraps
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, Generic, ParamSpec, TypeVar, get_args, get_origin

import typer
from rich.markup import escape
from typer.models import OptionInfo

from fineweb_mask.flows.commands import _common as common
from fineweb_mask.flows.display.progress import flow_shown
from fineweb_mask.flows.display.terminal import SafeConsole
from fineweb_mask.flows.processes.environment import set_environment
from fineweb_mask.flows.recipe import load_recipe, validate, with_overrides
from fineweb_mask.models.settings import PipelineSettings
from fineweb_mask.models.settings.base import Overrides

if TYPE_CHECKING:
    from prefect import Flow

    from fineweb_mask.flows.summary import Summary

P = ParamSpec("P")
R = TypeVar("R", bound="Summary")
Recipe = str | Path | Mapping[str, Any] | PipelineSettings
"""A recipe's file or name, its content, or its settings."""


class RecipeVerb(Generic[P, R]):
    """A function of settings and options; called, it takes a recipe and is run as a flow, as its command does.

    Parameters
    ----------
    work
        Takes the settings and the options, and returns a summary. Its docstring says first what the command's help
        does, and below `Parameters` what is the help of the options.
    check
        Module and name of the function that is called with the same before Prefect is imported, and raises what is
        wrong with them.
    tell
        Prints the summary for a person; takes the settings and options by name, too.
    """

    def __init__(
        self,
        work: Callable[Concatenate[PipelineSettings, P], R],
        check: str,
        tell: Callable[..., object],
    ) -> None:
        update_wrapper(self, work)
        self._work: Callable[..., R] = work
        self._check, self._tell = check, tell
        self._options = list(inspect.signature(work).parameters.values())[1:]

    def __call__(
        self, recipe: Recipe, overrides: Mapping[str, Any] | None = None, *args: P.args, **options: P.kwargs
    ) -> R:
        """Run the flow from Python, with bars on a terminal, and in a notebook that has ipywidgets.

        Parameters
        ----------
        recipe
            File or name of a recipe, such as "sample"; or its content, as a dictionary or as settings.
        overrides
            Settings that replace the recipe's, by section: `{"selection": {"lamb": 0.3}}`.
        args, options
            The function's.
        """
        settings = settings_of(recipe, overrides)
        resolve_name(self._check)(settings, *args, **options)
        in_notebook = SafeConsole(stderr=True).is_jupyter and find_spec("ipywidgets") is not None  # rich draws with it
        bars = sys.stderr.isatty() or in_notebook
        set_environment(show_bars=bars)
        with flow_shown(bars=bars):
            return self.flow(settings, *args, **options)

    @cached_property
    def flow(self) -> "Flow[..., R]":
        """The Prefect flow, which takes settings, options, and settings that replace the recipe's; Prefect is slow."""
        from fineweb_mask.flows.pipeline.start import as_flow

        own = [one.replace(annotation=_parts(one.annotation)[0]) for one in self._options]
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        first = inspect.Parameter("settings", kind, annotation=PipelineSettings)
        last = inspect.Parameter("overrides", kind, default=None, annotation=Overrides | None)
        signature = inspect.Signature([first, *own, last])

        @wraps(self._work)
        def run(*args: Any, **given: Any) -> R:  # noqa: ANN401 - what the function takes
            options = signature.bind(*args, **given).arguments
            settings = with_overrides(options.pop("settings"), options.pop("overrides", None))
            return self._work(settings, **options)

        run.__signature__ = signature  # type: ignore[attr-defined]
        return as_flow(self._work.__name__)(run)

    @cached_property
    def command(self) -> Callable[..., None]:
        """The command, which takes a recipe, `--set`, `--workspace` and the options."""
        said, helps = told_in(self._work)

        def run(
            recipe: Path, overrides: list[str] | None = None, workspace: str | None = None, **options: object
        ) -> common.Result:
            with common.recipe_checked():
                settings = load_recipe(recipe, overrides or [], workspace)
                resolve_name(self._check)(settings, **options)
            common.begin()
            with common.flow_shown():
                found = self.flow(settings, **options)
            code = common.QUARANTINED if found.status == "quarantined" else 0
            return common.Result(found, lambda: self._tell(found, settings=settings, **options), code)

        kind = inspect.Parameter.KEYWORD_ONLY
        own = (one.replace(kind=kind, annotation=_option(one.annotation, helps[one.name])) for one in self._options)
        parameters = [
            inspect.Parameter("recipe", kind, annotation=common.Recipe),
            *own,
            inspect.Parameter("overrides", kind, default=None, annotation=common.Overrides),
            inspect.Parameter("workspace", kind, default=None, annotation=common.WorkspaceFolder),
        ]
        run.__signature__ = inspect.Signature(parameters, return_annotation=common.Result)  # type: ignore[attr-defined]
        run.__name__, run.__doc__ = self._work.__name__, said
        return common.verb(run)


def told_in(work: Callable[..., object]) -> tuple[str, dict[str, str]]:
    """Return what a docstring says before its first section, and what it says of each parameter."""
    said, *sections = re.split(r"\n\n(\w+)\n-+\n", inspect.getdoc(work) or "")
    parameters = dict(zip(sections[::2], sections[1::2], strict=True)).get("Parameters", "")
    _, *found = re.split(r"(?:^|\n)(\w+)\n {4}", parameters)
    return said, {name: " ".join(text.split()) for name, text in zip(found[::2], found[1::2], strict=True)}


def _parts(kind: Any) -> tuple[Any, OptionInfo]:  # noqa: ANN401 - an annotation
    """Return the type of a parameter, and what makes it an option."""
    given, *more = get_args(kind) if get_origin(kind) is Annotated else (kind,)
    return given, copy(next(iter(more), typer.Option()))


def _option(kind: Any, said: str) -> Any:  # noqa: ANN401 - annotations
    """Return a command's annotation of a parameter; of several types it has text."""
    given, option = _parts(kind)
    option.help = escape(said)
    return Annotated[str | None if {str, list[float]} <= set(get_args(given)) else given, option]


def settings_of(recipe: Recipe, overrides: Mapping[str, Any] | None = None) -> PipelineSettings:
    """Return the settings of a recipe with overrides.

    Raises
    ------
    RecipeError
        If it is none.
    """
    if isinstance(recipe, str | Path):
        return load_recipe(recipe, overrides or {})
    if not isinstance(recipe, PipelineSettings):
        recipe = validate(PipelineSettings, recipe)
    return with_overrides(recipe, overrides)
