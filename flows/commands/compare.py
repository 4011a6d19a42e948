"""`fineweb-mask compare`: compare several selectors under the same budget."""

from typing import TYPE_CHECKING, Annotated

import typer

from fineweb_mask.flows.commands._common import (
    AsJson,
    BudgetBy,
    Open,
    Overrides,
    Recipe,
    WorkspaceFolder,
    end_with_page,
    load_settings_or_exit,
    run_or_exit,
)
from fineweb_mask.flows.display.terminal import print_selections

if TYPE_CHECKING:
    from fineweb_mask.models.settings import PipelineSettings


def compare(
    recipe: Recipe,
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
    budget_by: BudgetBy = "tokens",
    overrides: Overrides = None,
    workspace: WorkspaceFolder = None,
    show: Open = False,
    as_json: AsJson = False,
) -> None:
    """Compare selectors under the recipe's budget: a page with a table, overlaps, topics and plots.

    Example: fineweb-mask compare deployments/recipes/sample.yaml --selectors mean_field,random,greedy
    """
    names = None if selectors is None else [name.strip() for name in selectors.split(",") if name.strip()]

    def check(settings: "PipelineSettings") -> None:
        from fineweb_mask.flows.compare import check as check_compare
        from fineweb_mask.tasks.selection.contenders import check_selectors, missing_for

        if names is not None:
            check_selectors(names, missing_for(settings))
        check_compare(settings, label_column)

    settings = load_settings_or_exit(recipe, overrides, workspace, check, as_json=as_json)
    from fineweb_mask.flows.compare import run_compare

    summary = run_or_exit(lambda: run_compare(settings, names, label_column, budget_by), as_json=as_json)
    if as_json:
        typer.echo(summary.model_dump_json(ensure_ascii=True))
    else:
        print_selections("selector", summary.selectors.items(), settings.selection.shown_metrics, summary)
    end_with_page(settings, summary, show=show)
