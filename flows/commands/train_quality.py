"""`fineweb-mask train-quality`: train a quality classifier on your labels."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fineweb_mask.flows.commands._common import Force, Result, begin, shows_bars, verb
from fineweb_mask.flows.display.terminal import SafeConsole, print_line, print_paths, step_progress
from fineweb_mask.flows.processes.environment import set_environment
from fineweb_mask.flows.recipe import validate

if TYPE_CHECKING:
    from fineweb_mask.tasks.train_quality import TrainedMetrics


@verb
def train_quality(
    source: Annotated[Path, typer.Option("--input", help="Parquet file of texts with scores.")],
    output: Annotated[Path, typer.Option("--output", help="Model file to write, such as model.bin.")],
    *,
    text_column: Annotated[str, typer.Option("--text-column", help="Column of texts.")] = "text",
    score_column: Annotated[str, typer.Option("--score-column", help="Column of scores, or of 0 and 1.")] = "score",
    threshold: Annotated[float, typer.Option(help="Lowest score of a positive text.")] = 3.0,
    held_out: Annotated[float, typer.Option("--held-out", help="Share of the labels to measure on.")] = 0.2,
    epochs: Annotated[int, typer.Option(help="Passes over the labels.")] = 12,
    seed: Annotated[int, typer.Option(help="Seed of the split and of the training.")] = 0,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Lower-case the texts first.")] = False,
    force: Force = False,
) -> Result:
    """Train a fastText quality classifier and measure it on held-out labels.

    Example: fineweb-mask train-quality --input labels.parquet --output model.bin --score-column score --threshold 3
    """
    from fineweb_mask.models.settings.quality import TrainQualitySettings
    from fineweb_mask.tasks.train_quality import check_training
    from fineweb_mask.tasks.train_quality import train_quality as train

    set_environment()
    labels = {"path": str(source), "score_column": score_column, "threshold": threshold}
    content = {"labels": labels, "text_column": text_column, "lowercase": lowercase, "held_out": held_out}
    content |= {"epochs": epochs, "seed": seed}
    settings = validate(TrainQualitySettings, content)
    check_training(output, settings, force=force)
    begin("interrupted; run the same command again")
    with step_progress("training", show=shows_bars()):
        metrics = train(output, settings).model_copy(update={"model": str(output)})
    return Result(metrics, lambda: _print_metrics(metrics, output.absolute()))


def _print_metrics(metrics: "TrainedMetrics", model: Path) -> None:
    console = SafeConsole()
    print_line(
        console,
        f"{metrics.labels:,} labelled texts, {metrics.repeated:,} of them repeated; trained on {metrics.train:,}, "
        f"measured on {metrics.held_out:,} ({metrics.held_out_positive:,} positive)\n"
        f"precision {metrics.precision:.4f}  recall {metrics.recall:.4f}  F1 {metrics.f1:.4f}  "
        f"ROC-AUC {metrics.roc_auc:.4f}  average precision {metrics.average_precision:.4f}",
    )
    print_paths(console, model=model, metrics=model.with_suffix(".metrics.json"))
