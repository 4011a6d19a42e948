"""`fineweb-mask diff`: what changed between two workspaces, datasets or versions of one."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from fineweb_mask.flows.commands import _common as common
from fineweb_mask.flows.display.terminal import SafeConsole, echo, new_table
from fineweb_mask.flows.processes.environment import set_environment

if TYPE_CHECKING:
    from fineweb_mask.flows.ledger.diff import DiffSummary


def diff(
    a: Annotated[str, typer.Argument(help="Earlier workspace or dataset, or WORKSPACE@RUN of an earlier run.")],
    b: Annotated[str, typer.Argument(help="The later one.")],
    *,
    by: Annotated[str, typer.Option(help="Column whose values are groups.", metavar="COLUMN")] = "dump",
    tolerance: Annotated[
        float | None,
        typer.Option(
            help="Share of the documents of either that may differ; above it, exit status 1.", metavar="SHARE"
        ),
    ] = None,
    output: Annotated[Path, typer.Option(help="Folder of the page.", metavar="DIR")] = Path("diff"),
    show: common.Open = False,
    as_json: common.AsJson = False,
) -> None:
    """Tell what entered and left a selection, by stage, reason and group, how the scores drifted, with examples.

    Example: fineweb-mask diff workspaces/a workspaces/b --tolerance 0.05
    """
    set_environment(show_bars=common.shows_bars(as_json))
    with common.exit_on_error(as_json):
        from fineweb_mask.flows.ledger.diff import check_options, side_of

        check_options(a, b, tolerance, str(output))
        for place in (a, b):
            side_of(place, by)
    with common.flow_shown(as_json=as_json):
        from fineweb_mask.flows.ledger.diff import diff as run_diff

        found = run_diff(a, b, by, tolerance, str(output))
    common.print_result(found, as_json, lambda: _tell(found))
    if show:
        common.open_page(found.page)
    if found.is_above:
        raise typer.Exit(common.FAILED)


def _tell(found: "DiffSummary") -> None:
    console = SafeConsole()
    table = new_table("change", "documents")
    for kind, rows in (("entered", found.entered_by), ("left", found.left_by)):
        for row in rows:
            table.add_row(escape(f"{kind}: {row['stage']}, {row['reason']}"), f"{row['documents']:,}")
    if table.rows:
        console.print(table)
    groups = new_table(escape(found.by), "before", "after", "entered", "left")
    for row in found.groups[:10]:
        numbers = (f"{row[name]:,}" for name in ("a", "b", "entered", "left"))
        groups.add_row(escape(row["group"] or "(empty)"), *numbers)
    console.print(groups)
    for one in found.scores:
        if one["documents"]:
            rank = "" if one["rank_correlation"] is None else f", rank correlation {one['rank_correlation']:.3f}"
            echo(f"mean {one['score']}: {one['a']:z.3f} to {one['b']:z.3f} over {one['documents']:,} documents{rank}")
    limit = "" if found.tolerance is None else f", {'more than' if found.is_above else 'within'} {found.tolerance:.1%}"
    changed = f"{found.changed:.1%} of those that either selects are not in both{limit}"
    echo(f"{found.a['selected']:,} to {found.b['selected']:,} selected; {changed}")
    echo(f"page     {found.page}")
