"""Compare several selectors under the same budget, side by side on one page."""

from typing import Any

from fineweb_mask.flows.curate import prepare
from fineweb_mask.flows.pipeline.fit import fit_targets
from fineweb_mask.flows.pipeline.inputs import check_inputs
from fineweb_mask.flows.pipeline.selector_runs import SelectorRuns, published
from fineweb_mask.flows.pipeline.start import as_flow, start_run
from fineweb_mask.flows.recipe import with_overrides
from fineweb_mask.flows.summary import PageSummary
from fineweb_mask.models.settings import FIRST_IN_FORM, Overrides, PipelineSettings
from fineweb_mask.models.settings.selection import Unit
from fineweb_mask.tasks.comparison.page import check_label_column
from fineweb_mask.tasks.comparison.variants import (
    USUAL_SELECTORS,
    check_selectors,
    left_out,
    missing_for,
    reads_targets,
    shared_settings,
)


class CompareSummary(PageSummary):
    """What a comparison found; `fineweb-mask compare --json` prints it."""

    selectors: dict[str, dict[str, Any]]


@as_flow("compare")
def compare(
    settings: PipelineSettings,
    selectors: list[str] | None = None,
    label_column: str | None = None,
    budget_by: Unit | None = None,
    overrides: Overrides = FIRST_IN_FORM,
) -> CompareSummary:
    """Select by several selectors and write a page on what they chose; the pipeline's own masks stay as they are.

    Parameters
    ----------
    settings
        The recipe: its documents, budget, metrics, lamb and seed are everybody's.
    selectors
        Names of selectors; `all` is every one that has what it reads and does not take long. Where omitted, DATAMASK's
        solvers and the baselines.
    label_column
        Column of the documents that holds known topics, of which the coverage is measured.
    budget_by
        What everybody gets an equal share of, `selection.select_ratio`; None: what the recipe's budget counts. A recipe
        that sets `selection.budget` instead keeps its unit.
    overrides
        Settings instead of the recipe's, by section: `{"selection": {"lamb": 0.3}}`.

    Raises
    ------
    SelectorError
        If a selector is not known, or the recipe has not what it reads.
    LabelColumnError
        If the documents have no such column of labels.
    BadShardError
        If there is nothing to select from.
    """
    settings = with_overrides(settings, overrides)
    asked = USUAL_SELECTORS if selectors is None else selectors
    names, label_column = check(settings, asked, label_column)
    with start_run(settings, keep=False) as run:
        selection = shared_settings(run.settings.selection, budget_by)
        ready = prepare(run)
        targets = fit_targets(run, ready.documents, ready.models) if reads_targets(names) else None
        runs = SelectorRuns(run, ready.shards, selection, targets)
        runs.run(names)
        job = runs.comparison(
            "compare", label_column, label_column=label_column, left_out=left_out(asked, missing_for(settings))
        )
        found = run.one(job).details
        table = [{"selector": name, **figures} for name, figures in found["selectors"].items()]
        note = f"The same budget of {selection.budget_by}, selected by every selector."
        return published(CompareSummary, run, job.folder, table, note, **found)


def check(settings: PipelineSettings, selectors: list[str], label_column: str | None) -> tuple[list[str], str | None]:
    """Return the selectors and the column of topics; check them, and what the recipe names, before any work.

    Raises
    ------
    SettingsError
        With the name of what is missing.
    """
    names = check_selectors(selectors, missing_for(settings))
    shards = check_inputs(settings).shards
    return names, label_column and check_label_column(label_column, shards)
