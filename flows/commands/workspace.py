"""`fineweb-mask status`, `gc`: look at the files of a workspace, and remove stale ones."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fineweb_mask.flows.commands._common import Result, verb
from fineweb_mask.flows.display.terminal import SafeConsole, new_table, print_line, print_quarantined
from fineweb_mask.flows.recipe import load_recipe

if TYPE_CHECKING:
    from fineweb_mask.flows.status.garbage import Garbage
    from fineweb_mask.flows.status.inspection import WorkspaceStatus


@verb
def status(workspace: Annotated[str, typer.Argument(help="Workspace folder or URL.")]) -> Result:
    """Show the progress of every stage under the recipe of the last run: files done, missing, and stale.

    Stale files are of other settings, inputs or code than those of the last run. They are kept, so that going back to
    other settings costs nothing; `fineweb-mask gc` removes them.

    Example: fineweb-mask status workspaces/sample
    """
    from fineweb_mask.flows.status.inspection import inspect_workspace, status_of

    found = status_of(inspect_workspace(workspace))
    return Result(found, partial(print_status, found))


def print_status(found: "WorkspaceStatus") -> None:
    """Print the state of every stage."""
    console = SafeConsole()
    table = new_table("stage", "done", "missing", "stale", "rows", "MiB", "seconds", "rows/s")
    for stage in found.stages:
        rate = "" if stage.documents_per_second is None else f"{stage.documents_per_second:,.0f}"
        counts = (str(number) if number else "" for number in (stage.done, stage.missing, stage.stale))
        size = f"{stage.bytes / 2**20:,.1f}"
        table.add_row(stage.stage, *counts, f"{stage.rows:,}", size, f"{stage.seconds:,.1f}", rate)
    print_line(console, f"{found.workspace}: {found.shards:,} shard{'' if found.shards == 1 else 's'}")
    console.print(table)
    print_quarantined(console, found.quarantined)


@verb
def gc(
    workspace: Annotated[str, typer.Argument(help="Workspace folder or URL.")],
    *,
    recipe: Annotated[
        list[Path] | None,
        typer.Option(
            help="Keep what this recipe reaches (repeatable); by default the last run's and the dataset's.",
            metavar="RECIPE",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be removed.")] = False,
) -> Result:
    """Remove the stage files and fitted models that no given recipe reaches.

    Give all recipes whose results are to stay. No run may use the workspace meanwhile.

    Example: fineweb-mask gc workspaces/sample --dry-run
    """
    from fineweb_mask.flows.status.garbage import Garbage, collect_garbage

    settings = [load_recipe(path, workspace=workspace) for path in recipe or []]
    found = Garbage(dry_run=dry_run, removed=collect_garbage(workspace, settings, dry_run=dry_run))
    return Result(found, partial(_print_garbage, workspace, found))


def _print_garbage(workspace: str, found: "Garbage") -> None:
    console = SafeConsole()
    if not any(one.files for one in found.removed):
        print_line(console, f"{workspace}: nothing to remove")
    else:
        table = new_table("folder", "would be removed" if found.dry_run else "removed", "MiB")
        for one in found.removed:
            if one.files:
                table.add_row(one.folder, f"{one.files:,}", f"{one.bytes / 2**20:,.1f}")
        console.print(table)
    for one in found.removed:
        if one.undecided:
            line = f"{one.folder}: {one.undecided:,} files are left: a recipe's work is not finished"
            print_line(console, line)
