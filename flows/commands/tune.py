"""`fineweb-mask tune`: search the settings of a recipe's selection by what it teaches a small language model."""

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from fineweb_mask.flows.commands._recipe import RecipeVerb, Targets
from fineweb_mask.flows.display.terminal import echo
from fineweb_mask.models.settings import PipelineSettings

if TYPE_CHECKING:
    from fineweb_mask.flows.tune import TuneSummary


def _tell(found: "TuneSummary", **_: object) -> None:
    echo("\n".join([*found.said, f"page    {found.page}"]))


@partial(RecipeVerb, check="fineweb_mask.flows.tune:check", tell=_tell)
def tune(
    settings: PipelineSettings,
    targets: Targets = None,
    trials: Annotated[int, typer.Option(min=1)] = 50,
) -> "TuneSummary":
    """Search lamb, the weights of metrics and of scores, and shares of groups, and print the best as `--set` options.

    A language model of n-grams reads what every trial selects and predicts held-out texts. What was gained is measured
    on texts that the search did not see.

    Example: fineweb-mask tune mine.yaml --target books.parquet

    Parameters
    ----------
    settings
        The recipe: its documents, budget and seed are every trial's. Weights of scores are searched where it sums
        several, shares of groups where it has `selection.groups`. The pipeline's own masks stay as they are.
    targets
        File of texts that should be predicted well (repeatable); a name may stand before it: NAME=FILE.
    trials
        Settings that are tried, the recipe's own included.
    """
    from fineweb_mask.flows.tune import tune as tuned

    return tuned(settings, targets, trials)
