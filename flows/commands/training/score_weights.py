"""`fineweb-mask score-weights`: learn how to weigh several quality scores from what small models learn."""

from typing import TYPE_CHECKING, Annotated

import typer

from fineweb_mask.flows.commands._common import (
    AsJson,
    Open,
    Overrides,
    Recipe,
    WorkspaceFolder,
    end_with_page,
    load_settings_or_exit,
    run_or_exit,
)
from fineweb_mask.flows.commands.training.probe import HeldOut, Preset, Tokens, held_out_files
from fineweb_mask.flows.display.terminal import echo

if TYPE_CHECKING:
    from fineweb_mask.models.settings import PipelineSettings
    from fineweb_mask.models.settings.probe import ProbeSettings


def score_weights(
    recipe: Recipe,
    *,
    models: Annotated[
        int, typer.Option(help="Models, each trained on a selection by other weights; Meta-rater trained 256.")
    ] = 32,
    preset: Preset = "cpu",
    heldout: HeldOut = None,
    tokens: Tokens = None,
    overrides: Overrides = None,
    workspace: WorkspaceFolder = None,
    show: Open = False,
    as_json: AsJson = False,
) -> None:
    """Train small models on selections by random weights of the recipe's scores, and predict the best weights.

    Example: fineweb-mask score-weights mine.yaml --models 64 --heldout books=books.parquet
    """
    chosen: list[ProbeSettings] = []

    def check(settings: "PipelineSettings") -> None:
        from fineweb_mask.flows.probe import check as check_probe
        from fineweb_mask.flows.recipe import validate
        from fineweb_mask.flows.score_weights import weighted_arms
        from fineweb_mask.models.settings.probe import ProbeSettings

        content = {"seeds": 1, "preset": preset, "heldout": held_out_files(heldout), "tokens": tokens, "tasks": []}
        content["arms"] = [arm.model_dump() for arm in weighted_arms(settings, models)]
        chosen.append(validate(ProbeSettings, content))
        check_probe(settings, chosen[0])

    settings = load_settings_or_exit(recipe, overrides, workspace, check, as_json=as_json)
    from fineweb_mask.flows.score_weights import as_overrides, learn_score_weights

    summary = run_or_exit(lambda: learn_score_weights(settings, chosen[0]), as_json=as_json)
    if as_json:
        typer.echo(summary.model_dump_json(ensure_ascii=True))
    else:
        echo(f"weights      {', '.join(f'{name} {weight:.3f}' for name, weight in summary.weights.items())}")
        echo(f"predicted    {summary.predicted:.4f} bits per byte on {', '.join(summary.measured_on)}")
        echo(
            f"             predictions for models left out have a rank correlation of {summary.rank_correlation:.2f} "
            "with their losses: near 0 or below, the losses say nothing about the weights"
        )
        overrides_of = as_overrides(settings, summary.weights)
        echo(f"to use them  {' '.join(f'--set {key}={weight}' for key, weight in overrides_of.items())}")
        echo(f"page         {summary.page}")
    end_with_page(settings, summary, show=show)
