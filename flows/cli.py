"""The `fineweb-mask` command. Exit codes: 0 done; 1 failed; 2 wrong usage or settings; 3 done, shards quarantined."""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from flows.recipe import RecipeError, load_recipe

if TYPE_CHECKING:
    from flows.curate import RunSummary
    from flows.status import WorkspaceStatus
    from models.settings import PipelineSettings
    from tasks.train_quality import TrainedMetrics

FAILED, WRONG_USAGE, QUARANTINED = 1, 2, 3
ENVIRONMENT_DEFAULTS = {  # a choice of the user's own stands
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "90",
    # By default the temporary server writes one task event at a time, and loses what is left when a short run ends.
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "100",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_READ_BATCH_SIZE": "100",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
    "TOKENIZERS_PARALLELISM": "true",
}

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


@app.callback(invoke_without_command=True)
def _root(
    *, show_version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False
) -> None:
    """Turn raw web text into a smaller, better pre-training set."""
    if show_version:
        typer.echo(version("fineweb-mask"))
        raise typer.Exit


@app.command()
def run(
    recipe: Annotated[Path, typer.Argument(help="Recipe file, such as deployments/recipes/sample.yaml.")],
    *,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Override a setting (repeatable)."),
    ] = None,
    workspace: Annotated[
        str | None, typer.Option(help="Workspace folder in place of the recipe's.", metavar="DIR")
    ] = None,
    refit: Annotated[
        list[str] | None,
        typer.Option(help="Fit anew on the corpus as it is now: encoder, quality (repeatable).", metavar="WHAT"),
    ] = None,
    refresh: Annotated[
        list[str] | None,
        typer.Option(help="Run a stage again although its files are current (repeatable).", metavar="STAGE"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object last on stdout.")] = False,
) -> None:
    """Run the whole pipeline: ingest, score, embed, select, materialize.

    Example: fineweb-mask run deployments/recipes/sample.yaml --set selection.lamb=0.3 --workspace workspaces/try
    """
    for name, value in ENVIRONMENT_DEFAULTS.items():
        os.environ.setdefault(name, value)
    show_bars = sys.stderr.isatty() and not as_json
    if show_bars:
        os.environ.setdefault("PREFECT_LOGGING_LEVEL", "WARNING")
    try:
        settings = load_recipe(recipe, overrides or [], workspace)
        _check(settings, refit or [], refresh or [])
    except RecipeError as error:
        _fail(str(error), as_json, WRONG_USAGE)
    try:
        summary = _run(settings, refit or [], refresh or [], show_bars=show_bars)
    except KeyboardInterrupt:
        _fail("interrupted; run the same command again to go on from here", as_json, 130)
    except Exception as error:  # noqa: BLE001 - the last place that can say what happened
        _fail(f"{type(error).__name__}: {error}", as_json, FAILED)
    if as_json:
        typer.echo(summary.model_dump_json())
    else:
        _print_summary(Console(), summary)
    if summary.quarantined:
        raise typer.Exit(QUARANTINED)


@app.command()
def status(
    workspace: Annotated[Path, typer.Argument(help="Workspace folder.")],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object last on stdout.")] = False,
) -> None:
    """Show how far every stage is under the recipe of the last run: shards done, missing and stale.

    Example: fineweb-mask status workspaces/sample
    """
    for name, value in ENVIRONMENT_DEFAULTS.items():
        os.environ.setdefault(name, value)
    from flows.status import StatusError, workspace_status

    try:
        found = workspace_status(workspace)
    except StatusError as error:
        _fail(str(error), as_json, WRONG_USAGE)
    if as_json:
        typer.echo(found.model_dump_json())
    else:
        _print_status(Console(), found)


def _print_status(console: Console, found: "WorkspaceStatus") -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("stage")
    for name in ("done", "missing", "stale", "rows", "MiB", "seconds", "rows/s"):
        table.add_column(name, justify="right")
    for stage in found.stages:
        rate = "" if stage.documents_per_second is None else f"{stage.documents_per_second:,.0f}"
        counts = (str(number) if number else "" for number in (stage.done, stage.missing, stage.stale))
        size = f"{stage.bytes / 2**20:,.1f}"
        table.add_row(stage.stage, *counts, f"{stage.rows:,}", size, f"{stage.seconds:,.1f}", rate)
    console.print(f"{found.workspace}: {found.shards:,} shards", highlight=False, soft_wrap=True, markup=False)
    console.print(table)


ALGORITHMS = {"DiSF": "disf", "Facility": "facility", "Pair_simi": "pairwise"}  # the paper's names


@app.command()
def select(
    source: Annotated[Path, typer.Option("--input", help="Parquet file with an id, a quality and a vector column.")],
    output: Annotated[Path, typer.Option("--output", help="Parquet file to write.")],
    *,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    solver: Annotated[
        str, typer.Option(help="policy_gradient (the paper's), mean_field, or a baseline.")
    ] = "policy_gradient",
    algorithm: Annotated[str, typer.Option(help="Diversity metric: DiSF, Facility or Pair_simi.")] = "DiSF",
    select_ratio: Annotated[float, typer.Option("--select_ratio", help="Share of the documents to select.")] = 0.1,
    lamb: Annotated[float, typer.Option(help="Weight of quality; 1 - lamb is the diversity's.")] = 0.5,
    normalize: Annotated[
        str, typer.Option(help="none: raw terms, as the paper; range: each term from 0 to 1.")
    ] = "none",
    n_epochs: Annotated[int, typer.Option("--n_epochs", help="policy_gradient: learning steps.")] = 10_000,
    n_rollout: Annotated[int, typer.Option("--n_rollout", help="policy_gradient: masks sampled in a step.")] = 128,
    partial: Annotated[float, typer.Option(help="policy_gradient: share of the documents in a step.")] = 0.05,
    max_lr: Annotated[float, typer.Option("--max_lr", help="policy_gradient: first learning rate.")] = 10.0,
    min_lr: Annotated[float, typer.Option("--min_lr", help="policy_gradient: last learning rate.")] = 1.0,
    init: Annotated[str, typer.Option(help="policy_gradient: first logits, same or quality.")] = "same",
    prune: Annotated[float, typer.Option(help="policy_gradient: lowest-quality share left out.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of every random draw.")] = 0,
    id_column: Annotated[str, typer.Option("--id-column", help="Column of ids.")] = "chunk_id",
    quality_columns: Annotated[
        list[str] | None,
        typer.Option("--quality-column", help="Column of scores (repeatable). [default: quality_score]"),
    ] = None,
    feature_column: Annotated[str, typer.Option("--feature-column", help="Column of vectors.")] = "feature_arr",
    token_column: Annotated[
        str | None,
        typer.Option("--token-column", help="Column of token counts: select_ratio is then a share of tokens."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object last on stdout.")] = False,
) -> None:
    """Select from one Parquet file of vectors and scores, with the options of the paper's script.

    Example: fineweb-mask select --input in.parquet --output out.parquet --solver mean_field --algorithm Pair_simi
    """
    from pydantic import ValidationError

    from flows.recipe import explain
    from models.selection.settings import SelectionSettings
    from tasks.select_file import VectorColumns, VectorFileError, check_vector_file, select_file

    columns = VectorColumns(
        id=id_column, quality=quality_columns or ["quality_score"], features=feature_column, tokens=token_column
    )
    if algorithm not in ALGORITHMS:
        _fail(f"--algorithm takes one of {', '.join(ALGORITHMS)}, received {algorithm!r}", as_json, WRONG_USAGE)
    try:
        settings = SelectionSettings.model_validate(
            {
                "solver": solver,
                "metrics": ALGORITHMS[algorithm],
                "select_ratio": select_ratio,
                "budget_by": "tokens" if token_column else "documents",
                "lamb": lamb,
                "normalize": normalize,
                "seed": seed,
                "policy_gradient": {
                    "n_epochs": n_epochs,
                    "n_rollout": n_rollout,
                    "partial": partial,
                    "max_lr": max_lr,
                    "min_lr": min_lr,
                    "init": init,
                    "prune": prune,
                },
            }
        )
        check_vector_file(source, columns)
    except ValidationError as error:
        _fail("\n".join(explain(problem) for problem in error.errors()), as_json, WRONG_USAGE)
    except VectorFileError as error:
        _fail(str(error), as_json, WRONG_USAGE)
    from models.device import choose_device

    try:
        with _solver_progress() as progress:
            result = select_file(source, output, columns, settings, device=choose_device(device), progress=progress)
    except KeyboardInterrupt:
        _fail("interrupted; nothing was written", as_json, 130)
    except Exception as error:  # noqa: BLE001 - the last place that can say what happened
        _fail(f"{type(error).__name__}: {error}", as_json, FAILED)
    if as_json:
        typer.echo(result.model_dump_json())
        return
    bound = "" if result.gap is None else f", at most {100 * result.gap:.4f}% below the best possible"
    typer.echo(
        f"selected {result.selected:,} of {result.documents:,} documents in {result.seconds:.1f} s: "
        f"objective {result.objective:.6f} (random {result.random_objective:.6f}){bound}\n{result.output}"
    )


@contextmanager
def _solver_progress() -> Iterator[Callable[[int, float, float], None] | None]:
    """Show the solver's step and objective on a terminal; elsewhere give no listener."""
    if not sys.stderr.isatty():
        yield None
        return
    with Console(stderr=True).status("selecting") as status:
        yield lambda step, _seconds, objective: status.update(f"step {step:,}: objective {objective:.6f}")


@app.command("train-quality")
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

    from flows.recipe import explain, parse_overrides
    from models.quality.training_settings import TrainQualitySettings

    for name, value in ENVIRONMENT_DEFAULTS.items():
        os.environ.setdefault(name, value)
    if teacher is None and teacher_model is not None:
        _fail("--teacher-model needs --teacher KIND, the kind of scorer that the model is for", as_json, WRONG_USAGE)
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
        _fail("\n".join(explain(problem, TrainQualitySettings) for problem in error.errors()), as_json, WRONG_USAGE)
    except RecipeError as error:
        _fail(str(error), as_json, WRONG_USAGE)
    from tasks import train_quality as training_task

    try:
        job = training_task.plan(output, settings)
    except (OSError, ValueError) as error:
        _fail(str(error), as_json, WRONG_USAGE)
    try:
        with _training_progress() as progress:
            trained = training_task.train_quality(job, progress)
    except KeyboardInterrupt:
        _fail("interrupted; run the same command again", as_json, 130)
    except Exception as error:  # noqa: BLE001 - the last place that can say what happened
        _fail(f"{type(error).__name__}: {error}", as_json, FAILED)
    metrics = training_task.describe(trained.details)
    if as_json:
        typer.echo(metrics.model_copy(update={"model": str(output)}).model_dump_json())
    else:
        _print_metrics(Console(), metrics, trained.reused, job.model_path)


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


def _print_metrics(console: Console, metrics: "TrainedMetrics", reused: bool, model: Path) -> None:
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
    state = "already there, from the same labels and settings" if reused else "written"
    for name, suffix in (("model", ".bin"), ("metrics", ".metrics.json"), ("plot", ".reliability.png")):
        console.print(f"{name:8} {model.with_suffix(suffix)}", highlight=False, soft_wrap=True, markup=False)
    console.print(f"model {state}", highlight=False)


def _check(settings: "PipelineSettings", refit: list[str], refresh: list[str]) -> None:
    from flows.curate import Refit, check_inputs
    from flows.run import REFRESHED

    allowed = Refit.__args__  # type: ignore[attr-defined]
    if unknown := set(refit).difference(allowed):
        raise RecipeError(f"--refit takes one of {', '.join(allowed)}, received {sorted(unknown)[0]!r}")
    if unknown := set(refresh).difference(REFRESHED):
        raise RecipeError(f"--refresh takes one of {', '.join(REFRESHED)}, received {sorted(unknown)[0]!r}")
    try:
        check_inputs(settings)
    except (OSError, ValueError, ImportError) as error:
        raise RecipeError(str(error)) from error


def _run(settings: "PipelineSettings", refit: list[Any], refresh: list[Any], *, show_bars: bool) -> "RunSummary":
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

    from flows.curate import run_curate
    from flows.progress import shown_as_bars

    with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):  # saves a second per flow run
        if not show_bars:
            return run_curate(settings, refit, refresh)
        with shown_as_bars(Console(stderr=True)):
            return run_curate(settings, refit, refresh)


def _fail(message: str, as_json: bool, code: int) -> NoReturn:
    typer.echo(f"fineweb-mask: {message}", err=True)
    if as_json:
        typer.echo(json.dumps({"status": "failed", "error": message}))
    raise typer.Exit(code)


def _print_summary(console: Console, summary: "RunSummary") -> None:
    counts = summary.counts
    through = counts.through()
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("stage")
    tokens = "tokens in (est.)" if counts.tokens_estimated else "tokens in"
    for name in ("documents in", "kept", tokens, "kept", "files", "cached", "seconds"):
        table.add_column(name, justify="right")
    for stage in summary.stages:
        numbers = [""] * 4
        if stage.stage in through:
            before, after = through[stage.stage]
            amounts = (before.documents, after.documents, before.tokens, after.tokens)
            numbers = [f"{amount:,}" for amount in amounts]
        table.add_row(stage.stage, *numbers, str(stage.files), str(stage.cached), f"{stage.seconds:.1f}")
    console.print(table)
    if summary.dropped:
        reasons = ", ".join(f"{reason.replace('_', ' ')} {count:,}" for reason, count in summary.dropped.items())
        console.print(f"dropped  {reasons}", highlight=False)
    for shard in summary.quarantined:
        console.print(f"quarantined  {shard.shard}: {shard.reason}", style="yellow", markup=False)
    for name, path in (("dataset", summary.dataset), ("card", summary.card), ("report", summary.report)):
        console.print(f"{name:8} {path}", highlight=False, soft_wrap=True, markup=False)


def main() -> None:
    """Run the command; a request to end is an interruption like Ctrl-C, after which Prefect's own processes end too."""
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    app()


if __name__ == "__main__":
    main()
