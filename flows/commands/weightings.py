"""`fineweb-mask score-weights`, `group-shares`: learn weights of scores, or shares of groups, from random ones."""

import json
import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from fineweb_mask.flows.commands import _common as common
from fineweb_mask.flows.commands.tune import Targets, named
from fineweb_mask.flows.display.terminal import echo

if TYPE_CHECKING:
    from fineweb_mask.flows.weightings import Weighed, WeightingsSummary
    from fineweb_mask.models.settings import PipelineSettings


def _command(of: "Weighed", description: str) -> Callable[..., None]:
    def weigh(
        recipe: common.Recipe,
        *,
        target: Targets = None,
        models: Annotated[int, typer.Option(help="Random selections, each of which a model of n-grams reads.")] = 256,
        overrides: common.Overrides = None,
        workspace: common.WorkspaceFolder = None,
        show: common.Open = False,
        as_json: common.AsJson = False,
    ) -> None:
        def check(settings: "PipelineSettings") -> dict[str, str]:
            from fineweb_mask.flows.weightings import check as check_weightings

            files = dict(map(named, target or []))
            check_weightings(settings, of, files, models)
            return files

        def run(settings: "PipelineSettings", files: dict[str, str]) -> "WeightingsSummary":
            from fineweb_mask.flows.weightings import weightings

            return weightings(settings, of, files, models)

        common.run_to_page(recipe, overrides, workspace, check=check, run=run, tell=_tell, show=show, as_json=as_json)

    weigh.__doc__ = description
    return weigh


score_weights = _command(
    "scores",
    """Predict the best weights of a recipe's scores from what selections by random ones teach (Meta-rater).

    A language model of n-grams reads each selection and predicts held-out texts, in a second or two.

    Example: fineweb-mask score-weights mine.yaml --target books.parquet
    """,
)
group_shares = _command(
    "groups",
    """Predict the best shares of a recipe's groups from what random mixtures of them teach (RegMix).

    A language model of n-grams reads random documents of each mixture and predicts held-out texts.

    Example: fineweb-mask group-shares mine.yaml --set selection.groups.column=topic --set selection.metrics=disf
    """,
)


def _tell(_: "PipelineSettings", found: "WeightingsSummary") -> None:
    from fineweb_mask.tasks.witness.section import teaching_sentence
    from fineweb_mask.tasks.witness.weightings import FOUND, described

    echo(f"weights      {described(found.weights)}")
    echo(f"predicted    {found.predicted:.2%} of the loss after random documents, on {', '.join(found.measured_on)}")
    echo(
        f"             predictions for weights left out have a rank correlation of {found.rank_correlation:.2f} with "
        "their losses: near 0 or below, the losses say nothing about the weights"
    )
    for name in found.measured_on:
        echo(f"{name}: {teaching_sentence(found.final, FOUND, name)}")
    values = (f"{key}={one if isinstance(one, str) else json.dumps(one)}" for key, one in found.overrides.items())
    echo(f"to use them  {' '.join(f'--set {shlex.quote(value)}' for value in values)}")
    echo(f"page         {found.page}")
