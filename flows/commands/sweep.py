"""`fineweb-mask sweep`: select at many weights of quality and recommend one."""

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
from fineweb_mask.flows.options.lamb_values import DEFAULT, parse_lambs

if TYPE_CHECKING:
    from fineweb_mask.models.settings import PipelineSettings

NO_KNEE = "no knee: the trade-off is linear, so pick the value that suits your use"


def sweep(
    recipe: Recipe,
    *,
    lamb: Annotated[
        str,
        typer.Option(help="Weights of quality: 0,0.3,1 or 0,0.05,...,1 or 0:1:0.1 (from:to:step).", metavar="VALUES"),
    ] = DEFAULT,
    budget_by: BudgetBy = "tokens",
    overrides: Overrides = None,
    workspace: WorkspaceFolder = None,
    show: Open = False,
    as_json: AsJson = False,
) -> None:
    """Select at many weights of quality: a page with the frontier, its baselines and the recommended lamb.

    Example: fineweb-mask sweep deployments/recipes/sample.yaml --lamb 0,0.05,...,1
    """

    def check(settings: "PipelineSettings") -> None:
        from fineweb_mask.flows.pipeline.inputs import check_inputs

        parse_lambs(lamb)
        check_inputs(settings)

    settings = load_settings_or_exit(recipe, overrides, workspace, check, as_json=as_json)
    from fineweb_mask.flows.sweep import advised, run_sweep

    summary = run_or_exit(lambda: run_sweep(settings, lamb, budget_by), as_json=as_json)
    if as_json:
        typer.echo(summary.model_dump_json(ensure_ascii=True))
    else:
        best = "" if summary.recommended_lamb is None else f"{summary.recommended_lamb:g}"
        note = (
            f"the knee is at lamb {best}: --set selection.lamb={best}{advised(settings, budget_by)}"
            if best
            else NO_KNEE
        )
        rows = [(f"lamb {value['lamb']:g}", value) for value in summary.values] + list(summary.baselines.items())
        print_selections("selection", rows, settings.selection.shown_metrics, summary, best=f"lamb {best}", note=note)
    end_with_page(settings, summary, show=show)
