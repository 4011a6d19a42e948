"""`fineweb-mask compare`, `sweep`: select by several selectors, or at many weights of quality, under one budget."""

from typing import TYPE_CHECKING, Annotated

import typer

from fineweb_mask.flows.commands import _common as common
from fineweb_mask.flows.display.terminal import print_selections
from fineweb_mask.flows.lamb_values import DEFAULT, parse_lambs

if TYPE_CHECKING:
    from fineweb_mask.flows.compare import CompareSummary
    from fineweb_mask.flows.sweep import SweepSummary
    from fineweb_mask.models.settings import PipelineSettings

NO_KNEE = "no knee: the trade-off is linear, so pick the value that suits your use"


def compare(
    recipe: common.Recipe,
    *,
    selectors: Annotated[
        str | None,
        typer.Option(
            help="Selectors, separated by commas, of docs/selectors.md; all: every one that has what it reads.",
            show_default="DATAMASK's solver, greedy and the baselines",
            metavar="NAMES",
        ),
    ] = None,
    label_column: Annotated[
        str | None,
        typer.Option("--label-column", help="Column of known topics; their coverage is measured.", metavar="NAME"),
    ] = None,
    budget_by: common.BudgetBy = None,
    overrides: common.Overrides = None,
    workspace: common.WorkspaceFolder = None,
    show: common.Open = False,
    as_json: common.AsJson = False,
) -> None:
    """Compare selectors under the recipe's budget: a page with a table, overlaps, topics and plots.

    Example: fineweb-mask compare deployments/recipes/sample.yaml --selectors mean_field,random,greedy
    """
    names = None if selectors is None else [name.strip() for name in selectors.split(",") if name.strip()]

    def check(settings: "PipelineSettings") -> None:
        from fineweb_mask.flows.compare import check as check_compare
        from fineweb_mask.tasks.comparison.variants import USUAL_SELECTORS

        check_compare(settings, USUAL_SELECTORS if names is None else names, label_column)

    def run(settings: "PipelineSettings", _: None) -> "CompareSummary":
        from fineweb_mask.flows.compare import compare as flow

        return flow(settings, names, label_column, budget_by)

    def tell(settings: "PipelineSettings", found: "CompareSummary") -> None:
        print_selections("selector", found.selectors.items(), settings.selection.shown_metrics, found)

    common.run_to_page(recipe, overrides, workspace, check=check, run=run, tell=tell, show=show, as_json=as_json)


def sweep(
    recipe: common.Recipe,
    *,
    lamb: Annotated[
        str,
        typer.Option(help="Weights of quality: 0,0.3,1 or 0,0.05,...,1 or 0:1:0.1 (from:to:step).", metavar="VALUES"),
    ] = DEFAULT,
    budget_by: common.BudgetBy = None,
    overrides: common.Overrides = None,
    workspace: common.WorkspaceFolder = None,
    show: common.Open = False,
    as_json: common.AsJson = False,
) -> None:
    """Select at many weights of quality: a page with the frontier, its baselines and the recommended lamb.

    Example: fineweb-mask sweep deployments/recipes/sample.yaml --lamb 0,0.05,...,1
    """

    def check(settings: "PipelineSettings") -> None:
        from fineweb_mask.flows.pipeline.inputs import check_inputs

        parse_lambs(lamb)
        check_inputs(settings)

    def run(settings: "PipelineSettings", _: None) -> "SweepSummary":
        from fineweb_mask.flows.sweep import sweep as flow

        return flow(settings, lamb, budget_by)

    def tell(settings: "PipelineSettings", found: "SweepSummary") -> None:
        from fineweb_mask.flows.sweep import advised

        best = "" if found.recommended_lamb is None else f"{found.recommended_lamb:g}"
        advice = f"the knee is at lamb {best}: --set selection.lamb={best}{advised(settings, budget_by)}"
        rows = [(f"lamb {value['lamb']:g}", value) for value in found.values] + list(found.baselines.items())
        metrics, note = settings.selection.shown_metrics, advice if best else NO_KNEE
        print_selections("selection", rows, metrics, found, best=f"lamb {best}", note=note)

    common.run_to_page(recipe, overrides, workspace, check=check, run=run, tell=tell, show=show, as_json=as_json)
