"""`fineweb-mask select`: a selection from one file of vectors, with the options of the paper's script."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fineweb_mask.flows.commands._common import FAILED, WRONG_USAGE, fail
from fineweb_mask.models.settings.selection import METRICS

ALGORITHMS = dict(sorted((entry.paper_name, name) for name, entry in METRICS.items()))


def select(
    source: Annotated[Path, typer.Option("--input", help="Parquet file with an id, a quality and a vector column.")],
    output: Annotated[Path, typer.Option("--output", help="Parquet file to write.")],
    *,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    solver: Annotated[
        str, typer.Option(help="policy_gradient (the paper's), mean_field, or a baseline.")
    ] = "policy_gradient",
    algorithm: Annotated[
        str, typer.Option(help=f"Diversity metric: {' or '.join(', '.join(ALGORITHMS).rsplit(', ', 1))}.")
    ] = "DiSF",
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

    from fineweb_mask.flows.recipe import explain
    from fineweb_mask.models.settings.selection import SelectionSettings
    from fineweb_mask.tasks.selection.vector_file import VectorColumns, VectorFileError, check_vector_file, select_file

    columns = VectorColumns(
        id=id_column, quality=quality_columns or ["quality_score"], features=feature_column, tokens=token_column
    )
    if algorithm not in ALGORITHMS:
        fail(f"--algorithm takes one of {', '.join(ALGORITHMS)}, received {algorithm!r}", as_json, WRONG_USAGE)
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
        fail("\n".join(explain(problem) for problem in error.errors()), as_json, WRONG_USAGE)
    except VectorFileError as error:
        fail(str(error), as_json, WRONG_USAGE)
    from fineweb_mask.models.forward.device import choose_device

    try:
        with _solver_progress() as progress:
            result = select_file(source, output, columns, settings, device=choose_device(device), progress=progress)
    except KeyboardInterrupt:
        fail("interrupted; nothing was written", as_json, 130)
    except Exception as error:  # noqa: BLE001 - the last place that can say what happened
        fail(f"{type(error).__name__}: {error}", as_json, FAILED)
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
    """Show on a terminal how far the solver is, with the best objective so far; elsewhere give no listener."""
    if not sys.stderr.isatty():
        yield None
        return
    from fineweb_mask.models.runtime.progress import Step, reporting_to

    said = {"place": "selecting", "objective": ""}

    def show(**news: str) -> None:
        said.update(news)
        status.update(said["place"] + said["objective"])

    def at_work(_share: float, steps: tuple[Step, ...]) -> None:
        show(place=", ".join(map(str, steps)) or "selecting")

    with Console(stderr=True).status("selecting") as status, reporting_to(at_work):
        yield lambda _step, _seconds, objective: show(objective=f": objective {objective:.6f}")
