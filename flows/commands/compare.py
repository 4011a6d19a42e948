"""`fineweb-mask compare`: select in several ways under one budget, and show them side by side."""

from typing import TYPE_CHECKING, Annotated

import typer

from fineweb_mask.flows.commands import _common as common
from fineweb_mask.flows.display.terminal import print_selections
from fineweb_mask.flows.recipe import load_recipe
from fineweb_mask.models.settings.selection import METRICS

if TYPE_CHECKING:
    from fineweb_mask.flows.compare import CompareSummary

NO_KNEE = "no knee: the trade-off is linear, so pick the value that suits your use"


@common.verb
def compare(
    recipe: common.Recipe,
    *,
    variants: Annotated[
        str | None,
        typer.Option(
            help="Separated by commas: selectors (docs/selectors.md), or all that have what they read; with settings, "
            "mean_field\\[lamb=0.3]; Parquet files of ids that were selected elsewhere, theirs=path.parquet.",
            show_default="DATAMASK's solver, greedy and the baselines",
            metavar="NAMES",
        ),
    ] = None,
    lambs: Annotated[
        str | None,
        typer.Option(
            help="Weights of quality to select by, too: 0,0.3,1 or 0:1:0.1 (from:to:step). One is recommended.",
            metavar="VALUES",
        ),
    ] = None,
    label_column: Annotated[
        str | None,
        typer.Option("--label-column", help="Column of known topics; their coverage is measured.", metavar="NAME"),
    ] = None,
    target: common.Target = None,
    overrides: common.Overrides = None,
    workspace: common.WorkspaceFolder = None,
) -> common.Result:
    """Compare selections under the recipe's budget: a page with a table, the trade-off, overlaps and topics.

    Example: fineweb-mask compare deployments/recipes/sample.yaml --lambs 0:1:0.1 --variants random,greedy
    """
    with common.recipe_checked():
        settings = load_recipe(recipe, overrides or [], workspace)
        from fineweb_mask.flows.compare import check
        from fineweb_mask.tasks.comparison.variants import USUAL, split_variants

        asked = USUAL if variants is None else split_variants(variants)
        check(settings, asked, lambs, label_column, target or [])
    common.begin()
    with common.flow_shown():
        from fineweb_mask.flows.compare import compare as flow

        found = flow(settings, asked, lambs, label_column, target)
    code = common.QUARANTINED if found.quarantined else 0
    return common.Result(found, lambda: _tell(found, lambs), code)


def _tell(found: "CompareSummary", lambs: str | None) -> None:
    best = "" if found.recommended_lamb is None else f"{found.recommended_lamb:g}"
    note = f"the knee is at lamb {best}: --set selection.lamb={best}" if best else NO_KNEE if lambs else ""
    rows, metrics, knee = found.selections.items(), list(METRICS), f"mean_field[lamb={best}]"
    print_selections("selection", rows, metrics, found, best=knee, note=note)
