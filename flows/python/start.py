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

if TYPE_CHECKING:
    from fineweb_mask.flows.compare import CompareSummary
    from fineweb_mask.flows.curate import Until
    from fineweb_mask.flows.pipeline.fit import Refit
    from fineweb_mask.flows.summary import RunSummary, StoppedSummary
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


def compare(
    recipe: Recipe,
    overrides: Mapping[str, Any] | None = None,
    *,
    variants: Sequence[str] | None = None,
    lambs: str | Sequence[float] | None = None,
    label_column: str | None = None,
    targets: Sequence[str] | None = None,
) -> "CompareSummary":
    """Select in several ways under one budget, and write a page on what was chosen.

    Parameters
    ----------
    recipe, overrides
        See `curate`.
    variants
        Selectors, such as "random" or "mean_field[lamb=0.3]", or "theirs=path.parquet", the ids that were selected
        elsewhere; by default DATAMASK's solvers and the baselines.
    lambs
        Weights of quality from 0 to 1 that are selected by, too, and of which one is recommended; as text also
        `0:1:0.1` (from:to:step).
    label_column
        Column of the documents that holds known topics.
    targets
        Files of texts that should be predicted well, FILE or NAME=FILE.
    """
    with _started(recipe, overrides) as settings:
        from fineweb_mask.flows.compare import compare as flow
        from fineweb_mask.tasks.comparison.variants import USUAL

        values = lambs if lambs is None or isinstance(lambs, str) else ",".join(map(str, lambs))
        return flow(settings, list(variants or USUAL), values, label_column, list(targets or []))


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
