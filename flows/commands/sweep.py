"""`fineweb-mask sweep`: the frontier of quality and diversity, and a weight of quality to begin with."""

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from flows.commands.common import QUARANTINED, AsJson, Overrides, Recipe, WorkspaceFolder, outcome_of, settings_of
from flows.lambs import DEFAULT, parse_lambs

if TYPE_CHECKING:
    from flows.sweep import SweepSummary
    from models.settings import PipelineSettings


def sweep(
    recipe: Recipe,
    *,
    lamb: Annotated[
        str,
        typer.Option(help="Weights of quality: 0,0.3,1 or 0,0.05,...,1 or 0:1:0.1 (from:to:step).", metavar="VALUES"),
    ] = DEFAULT,
    overrides: Overrides = None,
    workspace: WorkspaceFolder = None,
    as_json: AsJson = False,
) -> None:
    """Select at many weights of quality: a page with the frontier, its baselines and the recommended lamb.

    Example: fineweb-mask sweep deployments/recipes/sample.yaml --lamb 0,0.05,...,1
    """

    def check(settings: "PipelineSettings") -> None:
        from flows.curate import check_inputs

        parse_lambs(lamb)
        check_inputs(settings)

    settings = settings_of(recipe, overrides, workspace, check, as_json=as_json)
    from flows.sweep import run_sweep

    summary = outcome_of(lambda: run_sweep(settings, lamb), as_json=as_json)
    if as_json:
        typer.echo(summary.model_dump_json())
    else:
        _print(Console(), summary)
    if summary.quarantined:
        raise typer.Exit(QUARANTINED)


def _print(console: Console, summary: "SweepSummary") -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("selection")
    for name in ("quality", "pairwise", "facility", "disf", "near-dup", "J", "gap", "seconds"):
        table.add_column(name, justify="right")
    for value in summary.values:
        best = value["lamb"] == summary.recommended_lamb
        table.add_row(f"lamb {value['lamb']:g}{' *' if best else ''}", *_figures(value), style="bold" if best else None)
    for name, one in summary.baselines.items():
        table.add_row(name, *_figures(one), style="dim")
    console.print(table)
    if summary.recommended_lamb is None:
        console.print("no knee: what is gained in quality costs the same in diversity all along", highlight=False)
    else:
        console.print(f"* the knee: --set selection.lamb={summary.recommended_lamb:g}", highlight=False)
    for shard in summary.quarantined:
        console.print(f"quarantined  {shard.shard}: {shard.reason}", style="yellow", markup=False)
    for name, path in (("page", summary.page), ("metrics", summary.metrics)):
        console.print(f"{name:8} {path}", highlight=False, soft_wrap=True, markup=False)


def _figures(one: dict[str, Any]) -> list[str]:
    gap = "" if one["gap"] is None else f"{one['gap']:.3%}"
    seconds = "" if one["seconds"] is None else f"{one['seconds']:.1f}"
    raw = [f"{one[name]:.4f}" for name in ("mean_quality", "pairwise", "facility", "disf")]
    return [*raw, f"{one['near_duplicates']:.1%}", f"{one['objective']:.4f}", gap, seconds]
