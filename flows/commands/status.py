"""`fineweb-mask status`: show the progress of every stage."""

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from fineweb_mask.flows.commands._common import AsJson, exit_on_error, set_environment
from fineweb_mask.flows.display.terminal import new_table, print_line

if TYPE_CHECKING:
    from fineweb_mask.flows.engine.inspection import WorkspaceStatus


def status(
    workspace: Annotated[str, typer.Argument(help="Workspace folder or URL.")],
    *,
    as_json: AsJson = False,
) -> None:
    """Show the progress of every stage under the recipe of the last run: shards done, missing and stale.

    Example: fineweb-mask status workspaces/sample
    """
    set_environment()
    from fineweb_mask.flows.engine.inspection import workspace_status

    with exit_on_error(as_json):
        found = workspace_status(workspace)
    if as_json:
        typer.echo(found.model_dump_json())
    else:
        _print_status(Console(), found)


def _print_status(console: Console, found: "WorkspaceStatus") -> None:
    table = new_table("stage", "done", "missing", "stale", "rows", "MiB", "seconds", "rows/s")
    for stage in found.stages:
        rate = "" if stage.documents_per_second is None else f"{stage.documents_per_second:,.0f}"
        counts = (str(number) if number else "" for number in (stage.done, stage.missing, stage.stale))
        size = f"{stage.bytes / 2**20:,.1f}"
        table.add_row(stage.stage, *counts, f"{stage.rows:,}", size, f"{stage.seconds:,.1f}", rate)
    print_line(console, f"{found.workspace}: {found.shards:,} shards")
    console.print(table)
