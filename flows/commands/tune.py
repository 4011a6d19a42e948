"""`fineweb-mask tune`: search the settings of a recipe's selection by what it teaches a small language model."""

from typing import TYPE_CHECKING, Annotated

import typer

from fineweb_mask.flows.commands import _common as common
from fineweb_mask.flows.display.terminal import echo

if TYPE_CHECKING:
    from fineweb_mask.flows.tune import TuneSummary
    from fineweb_mask.models.settings import PipelineSettings


def tune(
    recipe: common.Recipe,
    *,
    target: common.Target = None,
    trials: Annotated[int, typer.Option(help="Settings that are tried, the recipe's own included.", min=1)] = 50,
    overrides: common.Overrides = None,
    workspace: common.WorkspaceFolder = None,
    show: common.Open = False,
    as_json: common.AsJson = False,
) -> None:
    """Search lamb, the weights of metrics and of scores, and shares of groups, and print the best as `--set` options.

    A language model of n-grams reads what every trial selects and predicts held-out texts. What was gained is measured
    on texts that the search did not see.

    Example: fineweb-mask tune mine.yaml --target books.parquet
    """

    def check(settings: "PipelineSettings") -> None:
        from fineweb_mask.flows.tune import check as check_tune

        check_tune(settings, target or [])

    def run(settings: "PipelineSettings", _: None) -> "TuneSummary":
        from fineweb_mask.flows.tune import tune as flow

        return flow(settings, target, trials)

    def tell(_: "PipelineSettings", found: "TuneSummary") -> None:
        for line in [*found.said, f"page    {found.page}"]:
            echo(line)

    common.run_to_page(recipe, overrides, workspace, check=check, run=run, tell=tell, show=show, as_json=as_json)
