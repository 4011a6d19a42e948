"""`fineweb-mask why`, `diff`: what every stage decided on a document, and what changed between two selections."""

from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from fineweb_mask.flows.commands._common import FAILED, QUARANTINED, Result, shows_bars, verb
from fineweb_mask.flows.display.terminal import SafeConsole, echo, new_table, step_progress, visible
from fineweb_mask.flows.processes.environment import set_environment

if TYPE_CHECKING:
    from fineweb_mask.tasks.ledger.difference import DiffSummary

SHOWN_GROUPS = 10


@verb
def why(
    workspace: Annotated[str, typer.Argument(help="Workspace of a run: a folder or URL.")],
    documents: Annotated[list[str], typer.Argument(help="URLs or ids of documents.", metavar="URL|ID...")],
) -> Result:
    """Tell why a document is in the selection or not: every stage's decision, with its numbers.

    Exit status 3 if the source held no such document.

    Example: fineweb-mask why workspaces/sample https://example.org/page
    """
    set_environment()
    from fineweb_mask.flows import ledger

    with step_progress("looking it up", show=shows_bars()):
        found = ledger.why(workspace, documents)
    return Result(found, lambda: echo(visible(str(found), keep="\n")), QUARANTINED if found.unknown else 0)


@verb
def diff(
    a: Annotated[str, typer.Argument(help="Earlier workspace, or WORKSPACE@RUN of an earlier run.")],
    b: Annotated[str, typer.Argument(help="The later one.")],
    *,
    by: Annotated[str, typer.Option(help="Column whose values are groups.", metavar="COLUMN")] = "dump",
    tolerance: Annotated[
        float | None,
        typer.Option(
            help="Share of the documents of either that may differ; above it, exit status 1.", metavar="SHARE"
        ),
    ] = None,
) -> Result:
    """Tell what entered and left a selection, by stage, reason and group, with examples, and how the scores moved.

    Example: fineweb-mask diff workspaces/a workspaces/b --tolerance 0.05
    """
    set_environment()
    from fineweb_mask.flows import ledger

    with step_progress("comparing", show=shows_bars()):
        found = ledger.diff(a, b, by, tolerance)
    return Result(found, lambda: print_difference(found), FAILED if found.is_above else 0)


def print_difference(found: "DiffSummary") -> None:
    """Print what entered and left with an example of each, the largest groups, and how the scores moved."""
    console = SafeConsole()
    table = new_table("change", "documents")
    table.add_column("such as")
    for kind, rows in (("entered", found.entered_by), ("left", found.left_by)):
        for row in rows:
            change = escape(f"{kind}: {row['stage']}, {row['reason']}")
            table.add_row(change, f"{row['documents']:,}", escape(row["examples"][0]))
    if table.rows:
        console.print(table)
    groups = new_table(escape(found.by), "before", "after", "entered", "left")
    for row in found.groups[:SHOWN_GROUPS]:
        numbers = (f"{row[name]:,}" for name in ("a", "b", "entered", "left"))
        groups.add_row(escape(row["group"] or "(empty)"), *numbers)
    console.print(groups)
    for one in found.scores:
        if one["documents"]:
            alike = "" if one["correlation"] is None else f", correlation {one['correlation']:.3f}"
            echo(f"mean {one['score']}: {one['a']:z.3f} to {one['b']:z.3f} over {one['documents']:,} documents{alike}")
    limit = "" if found.tolerance is None else f", {'more than' if found.is_above else 'within'} {found.tolerance:.1%}"
    changed = f"{found.changed:.1%} of those that either selects are not in both{limit}"
    echo(f"{found.a['selected']:,} to {found.b['selected']:,} selected; {changed}")
