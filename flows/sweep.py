"""Select at many weights of quality, and show the frontier of quality and diversity with its knee on one page."""

from typing import Any

from fineweb_mask.flows.curate import prepare
from fineweb_mask.flows.lamb_values import DEFAULT, parse_lambs
from fineweb_mask.flows.pipeline.selector_runs import SelectorRuns, published
from fineweb_mask.flows.pipeline.start import as_flow, start_run
from fineweb_mask.flows.recipe import with_overrides
from fineweb_mask.flows.summary import PageSummary
from fineweb_mask.models.settings import FIRST_IN_FORM, Overrides, PipelineSettings
from fineweb_mask.models.settings.selection import Unit
from fineweb_mask.tasks.comparison.variants import shared_settings

BASELINES = ["random", "top_quality", "semdedup", "greedy"]


class SweepSummary(PageSummary):
    """What a sweep found; `fineweb-mask sweep --json` prints it."""

    recommended_lamb: float | None
    values: list[dict[str, Any]]
    baselines: dict[str, dict[str, Any]]


@as_flow("sweep")
def sweep(
    settings: PipelineSettings,
    lamb: str = DEFAULT,
    budget_by: Unit | None = None,
    overrides: Overrides = FIRST_IN_FORM,
) -> SweepSummary:
    """Select at many weights of quality and write a page on the frontier; the pipeline's own masks stay as they are.

    Parameters
    ----------
    settings
        The recipe: its documents, budget, metrics and seed are every selection's.
    lamb
        Weights of quality from 0 to 1: `0,0.3,1`, `0,0.05,...,1` or `0:1:0.1` (from:to:step).
    budget_by
        What every selection gets an equal share of, `selection.select_ratio`; None: what the recipe's budget counts. A
        recipe that sets `selection.budget` instead keeps its unit.
    overrides
        Settings instead of the recipe's, by section: `{"selection": {"lamb": 0.3}}`.

    Raises
    ------
    LambError
        If the values cannot be read.
    BadShardError
        If there is nothing to select from.
    """
    settings, lambs = with_overrides(settings, overrides), parse_lambs(lamb)
    with start_run(settings, keep=False) as run:
        selection = shared_settings(run.settings.selection, budget_by)
        ready = prepare(run)
        runs = SelectorRuns(run, ready.shards, selection)
        runs.sweep(lambs)
        runs.run(BASELINES)
        job = runs.comparison("sweep", lambs=lambs, advised=advised(settings, budget_by))
        found = run.one(job).details
        table = [{"selection": f"lamb {value['lamb']:g}", **value} for value in found["values"]]
        table += [{"selection": name, **figures} for name, figures in found["baselines"].items()]
        note = "Quality against diversity at every lamb."
        return published(SweepSummary, run, job.folder, table, note, **found)


def advised(settings: PipelineSettings, budget_by: Unit | None) -> str:
    """Return what a command must also set for the recipe to select as the sweep does; nothing if it does already."""
    selection = shared_settings(settings.selection, budget_by)
    return "" if selection == settings.selection else f" --set selection.budget_by={selection.budget_by}"
