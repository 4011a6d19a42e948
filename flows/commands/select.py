"""`fineweb-mask select`: select from one file of vectors, with the options of the paper's script."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fineweb_mask.flows.commands._common import Force, Result, begin, verb
from fineweb_mask.flows.display.terminal import echo, step_progress
from fineweb_mask.flows.recipe import validate
from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.settings.selection import METRICS

if TYPE_CHECKING:
    from fineweb_mask.tasks.comparison.vector_file import FileSelection

ALGORITHMS = dict(sorted((entry.paper_name, name) for name, entry in METRICS.items()))


@verb
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
    near_duplicates: Annotated[
        float | None,
        typer.Option(
            "--near_duplicates",
            help="Cosine from which only the best of near-duplicates may be selected.",
            show_default="the paper's: all may be",
        ),
    ] = None,
    n_epochs: Annotated[int, typer.Option("--n_epochs", help="policy_gradient: learning steps.")] = 10_000,
    n_rollout: Annotated[int, typer.Option("--n_rollout", help="policy_gradient: masks sampled in a step.")] = 128,
    partial: Annotated[float, typer.Option(help="policy_gradient: share of the documents in a step.")] = 0.05,
    max_lr: Annotated[float, typer.Option("--max_lr", help="policy_gradient: first learning rate.")] = 10.0,
    min_lr: Annotated[float, typer.Option("--min_lr", help="policy_gradient: last learning rate.")] = 1.0,
    init: Annotated[str, typer.Option(help="policy_gradient: first logits, same or quality.")] = "same",
    prune: Annotated[float, typer.Option(help="policy_gradient: lowest-quality share left out.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of every random draw.")] = 0,
    id_column: Annotated[str, typer.Option("--id-column", help="Column of ids.")] = "chunk_id",
    quality_column: Annotated[str, typer.Option("--quality-column", help="Column of scores.")] = "quality_score",
    feature_column: Annotated[str, typer.Option("--feature-column", help="Column of vectors.")] = "feature_arr",
    token_column: Annotated[
        str | None,
        typer.Option("--token-column", help="Column of token counts: select_ratio is then a share of tokens."),
    ] = None,
    force: Force = False,
) -> Result:
    """Select from one Parquet file of vectors and scores, with the options of the paper's script.

    Example: fineweb-mask select --input in.parquet --output out.parquet --solver mean_field --algorithm Pair_simi
    """
    from fineweb_mask.models.settings.selection import SelectionSettings
    from fineweb_mask.tasks.comparison.vector_file import select_file
    from fineweb_mask.tasks.outputs import check_output

    if algorithm not in ALGORITHMS:
        raise SettingsError(f"--algorithm takes one of {', '.join(ALGORITHMS)}, received {algorithm!r}")
    learning = {"n_epochs": n_epochs, "n_rollout": n_rollout, "partial": partial, "init": init, "prune": prune}
    given = {
        "solver": solver,
        "metrics": ALGORITHMS[algorithm],
        "select_ratio": select_ratio,
        "budget_by": "tokens" if token_column else "documents",
        "lamb": lamb,
        "normalize": normalize,
        "near_duplicates": near_duplicates,
        "seed": seed,
        "policy_gradient": learning | {"max_lr": max_lr, "min_lr": min_lr},
    }
    settings = validate(SelectionSettings, given)
    check_output(output, "--output", [source], replaces=force)
    from fineweb_mask.models.forward.device import choose_device

    begin("interrupted; nothing was written")
    with step_progress("selecting", show=sys.stderr.isatty()):
        result = select_file(
            source,
            output,
            settings,
            id_column=id_column,
            quality_column=quality_column,
            feature_column=feature_column,
            token_column=token_column,
            device=choose_device(device),
        )
    return Result(result, lambda: _print(result))


def _print(result: "FileSelection") -> None:
    bound = "" if result.gap is None else f", at most {100 * result.gap:.4f}% below the best possible"
    echo(
        f"selected {result.selected:,} of {result.documents:,} documents in {result.seconds:.1f} s: "
        f"objective {result.objective:.6f} (random {result.random_objective:.6f}){bound}\n{result.output}"
    )
