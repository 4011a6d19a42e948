"""Start the flows from Python as the command does: from a recipe's file or name, or from its settings."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from fineweb_mask.flows.display.progress import prefect_shown, shown_on
from fineweb_mask.flows.display.terminal import SafeConsole
from fineweb_mask.flows.processes.environment import set_environment
from fineweb_mask.flows.recipe import load_recipe, validate, with_overrides
from fineweb_mask.models.settings import PipelineSettings
from fineweb_mask.models.settings.selection import Unit

if TYPE_CHECKING:
    from fineweb_mask.flows.compare import CompareSummary
    from fineweb_mask.flows.curate import Until
    from fineweb_mask.flows.pipeline.fit import Refit
    from fineweb_mask.flows.summary import RunSummary, StoppedSummary
    from fineweb_mask.flows.sweep import SweepSummary
    from fineweb_mask.tasks.registry import Refreshed

Recipe = str | Path | Mapping[str, Any] | PipelineSettings
"""A recipe's file or name, its content, or its settings."""


@overload
def curate(
    recipe: Recipe,
    overrides: Mapping[str, Any] | None = None,
    *,
    refit: "list[Refit] | None" = None,
    refresh: "list[Refreshed] | None" = None,
    until: None = None,
) -> "RunSummary": ...


@overload
def curate(
    recipe: Recipe,
    overrides: Mapping[str, Any] | None = None,
    *,
    refit: "list[Refit] | None" = None,
    refresh: "list[Refreshed] | None" = None,
    until: "Until | None",
) -> "RunSummary | StoppedSummary": ...


def curate(
    recipe: Recipe,
    overrides: Mapping[str, Any] | None = None,
    *,
    refit: "list[Refit] | None" = None,
    refresh: "list[Refreshed] | None" = None,
    until: "Until | None" = None,
) -> "RunSummary | StoppedSummary":
    """Run the whole pipeline, from raw documents to a dataset; what is there already is not made again.

    Parameters
    ----------
    recipe
        File or name of a recipe, such as "sample"; or its content, as a dictionary or as settings.
    overrides
        Settings that replace the recipe's, by section: `{"selection": {"lamb": 0.3}}`.
    refit
        What is fitted again on the corpus as it is now: "encoder", "quality", "selection".
    refresh
        Stages that run again although their files are current.
    until
        The last stage that is run: "ingest", "score", "embed", "dedup", "select", "materialize", "export", "report".
        A later run goes on from there.

    Returns
    -------
    RunSummary | StoppedSummary
        Paths of the dataset and the report, counts, and the files that were set aside. Of a run that stopped before the
        report: after which stage, what the stages made, and those files.

    Raises
    ------
    RecipeError
        If the recipe cannot be read, or has a key or value that is not allowed, or a stage is unknown.
    FinewebMaskError
        If the run fails for a reason that its message says how to mend.

    Examples
    --------
    >>> summary = curate("sample", {"workspace": "workspaces/try", "selection": {"lamb": 0.3}})  # doctest: +SKIP
    >>> summary.documents_kept, summary.dataset  # doctest: +SKIP
    """
    from fineweb_mask.flows.curate import check_stages

    check_stages(refit or [], refresh or [], until)
    with _started(recipe, overrides) as settings:
        from fineweb_mask.flows.curate import curate as flow

        return flow(settings, refit, refresh, until=until)


def sweep(
    recipe: Recipe,
    overrides: Mapping[str, Any] | None = None,
    *,
    lamb: str | Sequence[float] = "0,0.1,...,1",
    budget_by: Unit | None = None,
) -> "SweepSummary":
    """Select at many weights of quality, and write a page on quality against diversity.

    Parameters
    ----------
    recipe, overrides
        See `curate`.
    lamb
        Weights of quality from 0 to 1; as text also `0,0.05,...,1` or `0:1:0.1` (from:to:step).
    budget_by
        What every selection gets an equal share of; None: what the recipe's budget counts.
    """
    with _started(recipe, overrides) as settings:
        from fineweb_mask.flows.sweep import sweep as flow

        return flow(settings, lamb if isinstance(lamb, str) else ",".join(map(str, lamb)), budget_by)


def compare(
    recipe: Recipe,
    overrides: Mapping[str, Any] | None = None,
    *,
    selectors: Sequence[str] | None = None,
    label_column: str | None = None,
    budget_by: Unit | None = None,
) -> "CompareSummary":
    """Select by several selectors under one budget, and write a page on what they chose.

    Parameters
    ----------
    recipe, overrides
        See `curate`.
    selectors
        Names of selectors; by default all but the slow ones.
    label_column
        Column of the documents that holds known topics.
    budget_by
        What every selection gets an equal share of; None: what the recipe's budget counts.
    """
    with _started(recipe, overrides) as settings:
        from fineweb_mask.flows.compare import compare as flow

        return flow(settings, None if selectors is None else list(selectors), label_column, budget_by)


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


@contextmanager
def _started(recipe: Recipe, overrides: Mapping[str, Any] | None) -> Iterator[PipelineSettings]:
    """Yield the settings for a flow in the block, with bars on a terminal, and in a notebook that has ipywidgets."""
    settings = settings_of(recipe, overrides)
    console = SafeConsole(stderr=True)
    bars = sys.stderr.isatty() or (console.is_jupyter and find_spec("ipywidgets") is not None)  # rich draws with it
    set_environment(show_bars=bars)
    with shown_on(console if bars else None), prefect_shown():
        yield settings
