"""`fineweb-mask score-weights`: learn how to weigh several quality scores from what small models learn."""

from typing import TYPE_CHECKING, Annotated

import typer

from fineweb_mask.flows.commands import _common as common
from fineweb_mask.flows.commands.probe.probe import HeldOut, Preset, Tokens, held_out_files
from fineweb_mask.flows.display.terminal import echo

if TYPE_CHECKING:
    from fineweb_mask.flows.probe.score_weights import ScoreWeightsSummary
    from fineweb_mask.models.probe.settings import ProbeSettings
    from fineweb_mask.models.settings import PipelineSettings


def score_weights(
    recipe: common.Recipe,
    *,
    models: Annotated[
        int, typer.Option(help="Models, each trained on a selection by other weights; Meta-rater trained 256.")
    ] = 32,
    preset: Preset = "cpu",
    heldout: HeldOut = None,
    tokens: Tokens = None,
    overrides: common.Overrides = None,
    workspace: common.WorkspaceFolder = None,
    show: common.Open = False,
    as_json: common.AsJson = False,
) -> None:
    """Train small models on selections by random weights of the recipe's scores, and predict the best weights.

    Example: fineweb-mask score-weights mine.yaml --models 64 --heldout books=books.parquet
    """

    def check(settings: "PipelineSettings") -> "ProbeSettings":
        from fineweb_mask.flows.probe.probe import check as check_probe
        from fineweb_mask.flows.probe.score_weights import weighted_arms
        from fineweb_mask.flows.recipe import validate
        from fineweb_mask.models.probe.settings import ProbeSettings

        content = {
            "seeds": 1,
            "preset": preset,
            "heldout": held_out_files(heldout),
            "tokens": tokens,
            "tasks": [],
            "from_scratch": True,
        }
        content["arms"] = [arm.model_dump() for arm in weighted_arms(settings, models)]
        chosen = validate(ProbeSettings, content)
        check_probe(settings, chosen)
        return chosen

    def run(settings: "PipelineSettings", chosen: "ProbeSettings") -> "ScoreWeightsSummary":
        from fineweb_mask.flows.probe.score_weights import learn_score_weights

        return learn_score_weights(settings, chosen)

    common.run_to_page(recipe, overrides, workspace, check=check, run=run, tell=_tell, show=show, as_json=as_json)


def _tell(settings: "PipelineSettings", found: "ScoreWeightsSummary") -> None:
    from fineweb_mask.flows.probe.score_weights import as_overrides

    echo(f"weights      {', '.join(f'{name} {weight:.3f}' for name, weight in found.weights.items())}")
    echo(f"predicted    {found.predicted:.4f} bits per byte on {', '.join(found.measured_on)}")
    echo(
        f"             predictions for models left out have a rank correlation of {found.rank_correlation:.2f} with "
        "their losses: near 0 or below, the losses say nothing about the weights"
    )
    weights = as_overrides(settings, found.weights)
    echo(f"to use them  {' '.join(f'--set {key}={weight}' for key, weight in weights.items())}")
    echo(f"page         {found.page}")
