"""`fineweb-mask compare`: compare several selectors under the same budget."""

from typing import TYPE_CHECKING, Annotated

import typer

from fineweb_mask.flows.commands import _common as common
from fineweb_mask.flows.display.terminal import print_selections

if TYPE_CHECKING:
    from fineweb_mask.flows.compare import CompareSummary
    from fineweb_mask.models.settings import PipelineSettings


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
    budget_by: common.BudgetBy = "tokens",
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
