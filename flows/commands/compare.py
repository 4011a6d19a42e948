"""`fineweb-mask compare`, `tune`: select in several ways under one budget side by side; search a recipe's settings."""

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from fineweb_mask.flows.commands._recipe import RecipeVerb
from fineweb_mask.flows.display.terminal import echo, print_selections
from fineweb_mask.models.settings import PipelineSettings
from fineweb_mask.models.settings.selection import METRICS

if TYPE_CHECKING:
    from fineweb_mask.flows.compare import CompareSummary
    from fineweb_mask.flows.tune import TuneSummary

Targets = Annotated[list[str] | None, typer.Option("--target", metavar="FILE")]
NO_KNEE = "no knee: the trade-off is linear, so pick the value that suits your use"


def _tell(found: "CompareSummary", lambs: str | None = None, **_: object) -> None:
    best = "" if found.recommended_lamb is None else f"{found.recommended_lamb:g}"
    note = f"the knee is at lamb {best}: --set selection.lamb={best}" if best else NO_KNEE if lambs else ""
    rows, metrics, knee = found.selections.items(), list(METRICS), f"mean_field[lamb={best}]"
    print_selections("selection", rows, metrics, found, best=knee, note=note)


@partial(RecipeVerb, check="fineweb_mask.flows.compare:check", tell=_tell)
def compare(
    settings: PipelineSettings,
    variants: Annotated[
        list[str] | None,
        typer.Option(show_default="DATAMASK's solver, greedy and the baselines", metavar="NAMES"),
    ] = None,
    lambs: Annotated[str | list[float] | None, typer.Option(metavar="VALUES")] = None,
    label_column: Annotated[str | None, typer.Option(metavar="NAME")] = None,
    targets: Targets = None,
) -> "CompareSummary":
    """Compare selections under the recipe's budget: a page with a table, the trade-off, overlaps and topics.

    Example: fineweb-mask compare deployments/recipes/sample.yaml --lambs 0:1:0.1 --variants random,greedy

    Parameters
    ----------
    settings
        The recipe: its documents, budget, metrics, lamb and seed are everybody's. The pipeline's own masks stay as they
        are.
    variants
        Separated by commas: selectors (docs/selectors.md), or all that have what they read; with settings,
        mean_field[lamb=0.3]; Parquet files of ids that were selected elsewhere, theirs=path.parquet.
    lambs
        Weights of quality to select by, too: 0,0.3,1 or 0:1:0.1 (from:to:step). One is recommended.
    label_column
        Column of known topics; their coverage is measured.
    targets
        File of texts that should be predicted well (repeatable); a name may stand before it: NAME=FILE.

    Raises
    ------
    SettingsError
        If a variant is not known, the recipe has not what it reads, or the documents have no such column of labels.
    BadShardError
        If there is nothing to select from.
    """
    from fineweb_mask.flows.compare import compare as compared

    return compared(settings, variants, lambs, label_column, targets)


def _tell_best(found: "TuneSummary", **_: object) -> None:
    echo("\n".join([*found.said, f"page    {found.page}"]))


@partial(RecipeVerb, check="fineweb_mask.flows.tune:check", tell=_tell_best)
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
