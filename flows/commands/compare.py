"""`fineweb-mask compare`: several selectors under the same budget, side by side."""

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from flows.commands.common import QUARANTINED, AsJson, Overrides, Recipe, WorkspaceFolder, outcome_of, settings_of

if TYPE_CHECKING:
    from flows.compare import CompareSummary
    from models.settings import PipelineSettings


def compare(
    recipe: Recipe,
    *,
    selectors: Annotated[
        str | None,
        typer.Option(
            help="Selectors, separated by commas: datamask, policy_gradient, top_quality, random, quality_sampling, "
            "semdedup, greedy. [default: all]",
            metavar="NAMES",
        ),
    ] = None,
    label_column: Annotated[
        str | None,
        typer.Option("--label-column", help="Column of known topics, to measure their coverage by.", metavar="NAME"),
    ] = None,
    overrides: Overrides = None,
    workspace: WorkspaceFolder = None,
    as_json: AsJson = False,
) -> None:
    """Compare selectors under the recipe's budget: a page with a table, overlaps, topics and plots.

    Example: fineweb-mask compare deployments/recipes/sample.yaml --selectors datamask,random,greedy
    """
    names = None if selectors is None else [name.strip() for name in selectors.split(",") if name.strip()]

    def check(settings: "PipelineSettings") -> None:
        from flows.compare import check as check_compare
        from tasks.contend import check_selectors

        if names is not None:
            check_selectors(names)
        check_compare(settings, label_column)

    settings = settings_of(recipe, overrides, workspace, check, as_json=as_json)
    from flows.compare import run_compare

    summary = outcome_of(lambda: run_compare(settings, names, label_column), as_json=as_json)
    if as_json:
        typer.echo(summary.model_dump_json())
    else:
        _print(Console(), summary)
    if summary.quarantined:
        raise typer.Exit(QUARANTINED)


def _print(console: Console, summary: "CompareSummary") -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("selector")
    for name in ("quality", "pairwise", "facility", "disf", "near-dup", "topics", "J", "gap", "seconds"):
        table.add_column(name, justify="right")
    for name, one in summary.selectors.items():
        figures = [f"{one[figure]:.4f}" for figure in ("mean_quality", "pairwise", "facility", "disf")]
        topics = "" if one["topics"] is None else f"{one['effective_topics']:.1f}"
        gap = "" if one["gap"] is None else f"{one['gap']:.3%}"
        seconds = "" if one["seconds"] is None else f"{one['seconds']:.1f}"
        table.add_row(name, *figures, f"{one['near_duplicates']:.1%}", topics, f"{one['objective']:.4f}", gap, seconds)
    console.print(table)
    for shard in summary.quarantined:
        console.print(f"quarantined  {shard.shard}: {shard.reason}", style="yellow", markup=False)
    for name, path in (("page", summary.page), ("metrics", summary.metrics)):
        console.print(f"{name:8} {path}", highlight=False, soft_wrap=True, markup=False)
