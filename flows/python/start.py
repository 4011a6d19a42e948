"""Start the flows from Python as the command does: from a recipe's file or name, or from its settings."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fineweb_mask.flows.display.progress import flow_shown
from fineweb_mask.flows.display.terminal import SafeConsole
from fineweb_mask.flows.processes.environment import set_environment
from fineweb_mask.flows.recipe import load_recipe, validate, with_overrides
from fineweb_mask.models.settings import PipelineSettings

if TYPE_CHECKING:
    from fineweb_mask.flows.compare import CompareSummary
    from fineweb_mask.flows.pipeline.fit import Refit
    from fineweb_mask.flows.summary import RunSummary

Recipe = str | Path | Mapping[str, Any] | PipelineSettings
"""A recipe's file or name, its content, or its settings."""


def curate(
    recipe: Recipe,
    overrides: Mapping[str, Any] | None = None,
    *,
    refit: "list[Refit] | None" = None,
) -> "RunSummary":
    """Run the whole pipeline, from raw documents to a dataset; what is there already is not made again.

    Parameters
    ----------
    recipe
        File or name of a recipe, such as "sample"; or its content, as a dictionary or as settings.
    overrides
        Settings that replace the recipe's, by section: `{"selection": {"lamb": 0.3}}`.
    refit
        What is fitted again on the corpus as it is now: "encoder", "quality", "selection".

    Returns
    -------
    RunSummary
        Paths of the dataset and the report, counts, and the files that were set aside.

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

    check_stages(refit or [], None)
    with _started(recipe, overrides) as settings:
        from fineweb_mask.flows.curate import curate as flow

        return cast("RunSummary", flow(settings, refit))


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

        values = lambs if lambs is None or isinstance(lambs, str) else ",".join(map(str, lambs))
        return flow(settings, None if variants is None else list(variants), values, label_column, list(targets or []))


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
    in_notebook = SafeConsole(stderr=True).is_jupyter and find_spec("ipywidgets") is not None  # rich draws with it
    bars = sys.stderr.isatty() or in_notebook
    set_environment(show_bars=bars)
    with flow_shown(bars=bars):
        yield settings
