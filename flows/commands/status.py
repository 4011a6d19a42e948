"""`fineweb-mask status`: how far every stage is."""

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from fineweb_mask.flows.commands._common import WRONG_USAGE, fail, set_environment

if TYPE_CHECKING:
    from fineweb_mask.flows.engine.inspection import WorkspaceStatus


def status(
    workspace: Annotated[str, typer.Argument(help="Workspace folder or URL.")],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object last on stdout.")] = False,
) -> None:
    """Show how far every stage is under the recipe of the last run: shards done, missing and stale.

    Example: fineweb-mask status workspaces/sample
    """
    set_environment()
    from fineweb_mask.flows.engine.inspection import StatusError, workspace_status

    try:
        found = workspace_status(workspace)
    except StatusError as error:
        fail(str(error), as_json, WRONG_USAGE)
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
