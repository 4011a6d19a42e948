"""`fineweb-mask train-quality`: train a quality classifier on your labels."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from fineweb_mask.flows.commands._common import Answer, Force, begin, verb
from fineweb_mask.flows.display.terminal import SafeConsole, echo, new_table, print_line, print_paths
from fineweb_mask.flows.processes.environment import set_environment
from fineweb_mask.flows.recipe import parse_overrides, validate

if TYPE_CHECKING:
    from fineweb_mask.tasks.fit.train_quality import TrainedMetrics


@verb
def train_quality(
    source: Annotated[Path, typer.Option("--input", help="Parquet file of texts with scores.")],
    output: Annotated[Path, typer.Option("--output", help="Model file to write, such as model.bin.")],
    *,
    text_column: Annotated[str, typer.Option("--text-column", help="Column of texts.")] = "text",
    score_column: Annotated[str, typer.Option("--score-column", help="Column of scores, or of 0 and 1.")] = "score",
    threshold: Annotated[float, typer.Option(help="Lowest score of a positive text.")] = 3.0,
    held_out: Annotated[float, typer.Option("--held-out", help="Share of the labels to measure on.")] = 0.2,
    seed: Annotated[int, typer.Option(help="Seed of the split and of the training.")] = 0,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Lower-case the texts first.")] = False,
    training: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="epochs, learning_rate, ... (repeatable)."),
    ] = None,
    force: Force = False,
) -> Answer:
    """Train a fastText quality classifier and measure it on held-out labels.

    Example: fineweb-mask train-quality --input labels.parquet --output model.bin --score-column score --threshold 3
    """
    from fineweb_mask.models.settings.quality import TrainQualitySettings
    from fineweb_mask.tasks.fit import train_quality as training_task

    set_environment()
    content = {
        "labels": {
            "path": str(source),
            "text_column": text_column,
            "score_column": score_column,
            "threshold": threshold,
        },
        "training": {"seed": seed, **parse_overrides(training or [])},
        "lowercase": lowercase,
        "held_out": held_out,
        "split_seed": seed,
    }
    settings = validate(TrainQualitySettings, content)
    training_task.check_training(output, settings.labels, force=force)
    begin("interrupted; run the same command again")
    with _training_progress() as progress:
        metrics = training_task.train_quality(output, settings, progress).model_copy(update={"model": str(output)})
    return Answer(metrics, lambda: _print_metrics(SafeConsole(), metrics, output.absolute()))


@contextmanager
def _training_progress() -> Iterator[Callable[[str], None]]:
    """Show the current step: on a terminal in one changing line, elsewhere in a line each."""
    if sys.stderr.isatty():
        with SafeConsole(stderr=True).status("starting") as status:
            yield status.update
    else:
        yield partial(echo, err=True)


def _print_metrics(console: Console, metrics: "TrainedMetrics", model: Path) -> None:
    held_out = metrics.held_out
    print_line(
        console,
        f"{metrics.labels:,} labelled texts, trained on {metrics.train:,} ({metrics.train_positive:,} positive), "
        f"measured on {held_out.documents:,} ({held_out.positive:,} positive)",
    )
    if metrics.dropped:
        print_line(console, "dropped  " + ", ".join(f"{reason} {rows:,}" for reason, rows in metrics.dropped.items()))
    print_line(
        console,
        f"precision {held_out.precision:.4f}  recall {held_out.recall:.4f}  F1 {held_out.f1:.4f}  "
        f"ROC-AUC {held_out.roc_auc:.4f}  calibration error {held_out.calibration_error:.4f}",
    )
    table = new_table("score", "texts", "mean score", "share positive")
    for one in held_out.reliability:
        table.add_row(
            f"{one.low:.1f}-{one.high:.1f}", f"{one.documents:,}", f"{one.mean_score:.3f}", f"{one.positive_share:.3f}"
        )
    console.print(table)
    suffixes = {"model": ".bin", "metrics": ".metrics.json", "plot": ".reliability.png"}
    print_paths(console, **{name: model.with_suffix(suffix) for name, suffix in suffixes.items()})
