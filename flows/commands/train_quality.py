"""`fineweb-mask train-quality`: a quality classifier of one's own."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from fineweb_mask.flows.commands._common import FAILED, WRONG_USAGE, fail, set_environment
from fineweb_mask.flows.recipe import RecipeError

if TYPE_CHECKING:
    from fineweb_mask.tasks.train_quality import TrainedMetrics


def train_quality(
    source: Annotated[Path, typer.Option("--input", help="Parquet file of texts with scores or labels.")],
    output: Annotated[Path, typer.Option("--output", help="Model file to write, such as model.bin.")],
    *,
    text_column: Annotated[str, typer.Option("--text-column", help="Column of texts.")] = "text",
    score_column: Annotated[str, typer.Option("--score-column", help="Column of scores.")] = "score",
    threshold: Annotated[float, typer.Option(help="Scores from here on are positive.")] = 3.0,
    label_column: Annotated[
        str | None, typer.Option("--label-column", help="Column of labels (text, integer, boolean), not scores.")
    ] = None,
    positive: Annotated[str | None, typer.Option(help="The label of a good text; not needed for 0/1.")] = None,
    held_out: Annotated[float, typer.Option("--held-out", help="Share of the labels to measure on.")] = 0.2,
    seed: Annotated[int, typer.Option(help="Seed of the split and of the training.")] = 0,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Lower-case the texts first.")] = False,
    autotune: Annotated[
        int | None, typer.Option(help="Let fastText search for its settings for so many seconds.", metavar="SECONDS")
    ] = None,
    teacher: Annotated[
        str | None, typer.Option(help="Kind of scorer whose scores are the labels, such as fasttext.", metavar="KIND")
    ] = None,
    teacher_model: Annotated[
        str | None, typer.Option("--teacher-model", help="The teacher's model: a path or hub name.")
    ] = None,
    teacher_sample: Annotated[
        int, typer.Option("--teacher-sample", help="Texts that the teacher scores, drawn at random.")
    ] = 20_000,
    training: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="epochs, learning_rate, ... (repeatable)."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object last on stdout.")] = False,
) -> None:
    """Train a fastText quality classifier and measure it on held-out labels.

    Example: fineweb-mask train-quality --input labels.parquet --output model.bin --score-column score --threshold 3
    """
    from pydantic import ValidationError

    from fineweb_mask.flows.recipe import explain, parse_overrides
    from fineweb_mask.models.settings.training import TrainQualitySettings

    set_environment()
    if teacher is None and teacher_model is not None:
        fail("--teacher-model needs --teacher KIND, the kind of scorer that the model is for", as_json, WRONG_USAGE)
    scorer = {"name": "teacher", "kind": teacher} | ({} if teacher_model is None else {"model": teacher_model})
    try:
        settings = TrainQualitySettings.model_validate(
            {
                "labels": {
                    "path": str(source),
                    "text_column": text_column,
                    "score_column": score_column,
                    "threshold": threshold,
                    "label_column": label_column,
                    "positive": positive,
                },
                "training": {"seed": seed, "autotune_seconds": autotune, **parse_overrides(training or [])},
                "lowercase": lowercase,
                "held_out": held_out,
                "split_seed": seed,
                "teacher": None if teacher is None else {"scorer": scorer, "sample": teacher_sample},
            }
        )
    except ValidationError as error:
        fail("\n".join(explain(problem, TrainQualitySettings) for problem in error.errors()), as_json, WRONG_USAGE)
    except RecipeError as error:
        fail(str(error), as_json, WRONG_USAGE)
    from fineweb_mask.tasks import train_quality as training_task

    try:
        job = training_task.TrainQualityJob.of(output, settings)
    except (OSError, ValueError) as error:
        fail(str(error), as_json, WRONG_USAGE)
    try:
        with _training_progress() as progress:
            trained = training_task.train_quality(job, progress)
    except KeyboardInterrupt:
        fail("interrupted; run the same command again", as_json, 130)
    except Exception as error:  # noqa: BLE001 - the last place that can say what happened
        fail(f"{type(error).__name__}: {error}", as_json, FAILED)
    metrics = training_task.describe(trained.details)
    if as_json:
        typer.echo(metrics.model_copy(update={"model": str(output)}).model_dump_json())
    else:
        _print_metrics(Console(), metrics, trained.cached, job.model_path)


@contextmanager
def _training_progress() -> Iterator[Callable[[str, int, int], None]]:
    """Show what is being done: on a terminal in one changing line, elsewhere in a line for each step."""
    shown: list[str] = []

    def line(what: str, done: int, of: int) -> str:
        return f"{what}: {done:,} of {of:,} texts" if of else what

    if sys.stderr.isatty():
        with Console(stderr=True).status("starting") as status:
            yield lambda what, done, of: status.update(line(what, done, of))
        return

    def log(what: str, done: int, of: int) -> None:
        tenth = f"{what} {10 * done // of if of else 0}"
        if tenth not in shown:
            shown.append(tenth)
            typer.echo(line(what, done, of), err=True)

    yield log


def _print_metrics(console: Console, metrics: "TrainedMetrics", cached: bool, model: Path) -> None:
    held_out = metrics.held_out
    dropped = ", ".join(f"{reason} {rows:,}" for reason, rows in metrics.dropped.items())
    console.print(
        f"{metrics.labels:,} labelled texts, trained on {metrics.train:,} ({metrics.train_positive:,} positive), "
        f"measured on {held_out.documents:,} ({held_out.positive:,} positive)",
        highlight=False,
        soft_wrap=True,
    )
    if dropped:
        console.print(f"dropped  {dropped}", highlight=False)
    console.print(
        f"precision {held_out.precision:.4f}  recall {held_out.recall:.4f}  F1 {held_out.f1:.4f}  "
        f"ROC-AUC {held_out.roc_auc:.4f}  calibration error {held_out.calibration_error:.4f}",
        highlight=False,
        soft_wrap=True,
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("score", "texts", "mean score", "share positive"):
        table.add_column(name, justify="right")
    for one in held_out.reliability:
        table.add_row(
            f"{one.low:.1f}-{one.high:.1f}", f"{one.documents:,}", f"{one.mean_score:.3f}", f"{one.positive_share:.3f}"
        )
    console.print(table)
    state = "already there, from the same labels and settings" if cached else "written"
    for name, suffix in (("model", ".bin"), ("metrics", ".metrics.json"), ("plot", ".reliability.png")):
        console.print(f"{name:8} {model.with_suffix(suffix)}", highlight=False, soft_wrap=True, markup=False)
    console.print(f"model {state}", highlight=False)
