"""`fineweb-mask tune`: search the settings of a recipe's selection by what it teaches a small language model."""

from typing import Annotated

import typer

from fineweb_mask.flows.commands import _common as common
from fineweb_mask.flows.display.terminal import echo
from fineweb_mask.flows.recipe import load_recipe


@common.verb
def tune(
    recipe: common.Recipe,
    *,
    target: common.Target = None,
    trials: Annotated[int, typer.Option(help="Settings that are tried, the recipe's own included.", min=1)] = 50,
    overrides: common.Overrides = None,
    workspace: common.WorkspaceFolder = None,
) -> common.Result:
    """Search lamb, the weights of metrics and of scores, and shares of groups, and print the best as `--set` options.

    A language model of n-grams reads what every trial selects and predicts held-out texts. What was gained is measured
    on texts that the search did not see.

    Example: fineweb-mask tune mine.yaml --target books.parquet
    """
    with common.recipe_checked():
        settings = load_recipe(recipe, overrides or [], workspace)
        from fineweb_mask.flows.tune import check

        check(settings, target or [])
    common.begin()
    with common.flow_shown():
        from fineweb_mask.flows.tune import tune as flow

        found = flow(settings, target, trials)
    said = "\n".join([*found.said, f"page    {found.page}"])
    return common.Result(found, lambda: echo(said), common.QUARANTINED if found.quarantined else 0)
