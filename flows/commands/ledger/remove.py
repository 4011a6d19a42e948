"""`fineweb-mask remove`: remove documents from a workspace on request, with all that was made of them."""

import json
from contextlib import chdir
from typing import TYPE_CHECKING, Annotated

import typer

from fineweb_mask.flows.commands import _common as common
from fineweb_mask.flows.display.terminal import echo, step_progress, visible
from fineweb_mask.flows.processes.environment import set_environment

if TYPE_CHECKING:
    from fineweb_mask.flows.ledger.remove import RemovalSummary
    from fineweb_mask.flows.status.removal import Requested

LISTED = 20


def remove(
    workspace: Annotated[str, typer.Argument(help="Workspace of a finished run: a folder or URL.")],
    *,
    urls: Annotated[str | None, typer.Option(help="File with a URL on each line.", metavar="FILE")] = None,
    ids: Annotated[str | None, typer.Option(help="File with an id on each line.", metavar="FILE")] = None,
    domains: Annotated[
        str | None,
        typer.Option(help="File with a domain on each line, which stands for all hosts in it.", metavar="FILE"),
    ] = None,
    texts: Annotated[
        str | None, typer.Option(help="File of documents (.parquet, .jsonl), or one text (.txt).", metavar="FILE")
    ] = None,
    twins: Annotated[bool, typer.Option("--twins", help="Remove near-duplicates of them, too.")] = False,
    most: Annotated[
        float, typer.Option(help="Share of the dataset that is removed without --yes.", min=0, max=1)
    ] = 0.05,
    yes: Annotated[bool, typer.Option("--yes", help="Remove as much as the list asks for.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count what would be removed.")] = False,
    as_json: common.AsJson = False,
) -> None:
    """Remove documents, and every copy of their texts, from the workspace, the dataset and the exports, for good.

    Only the files concerned are written again, nothing is scored or embedded again, and the next best documents take
    the place of those that were selected. A list in the workspace keeps them out of all later runs. Interrupted, the
    same command goes on, or one without a list. The receipt is checked by `verify --receipt`. Names of no document are
    kept out of later runs, too, and are no error.

    Example: fineweb-mask remove workspaces/sample --urls optout.txt
    """
    set_environment(show_bars=common.shows_bars(as_json))
    from fineweb_mask.flows.status.inspection import last_run
    from fineweb_mask.flows.status.removal import asked_in, check_asked, request
    from fineweb_mask.models.errors import SettingsError
    from fineweb_mask.tasks.workspace.removals import is_pending

    requested, given = None, dict[str, str]()
    with common.exit_on_interruption(as_json), common.exit_on_error(as_json):
        asked = asked_in(urls, ids, domains, texts)
        opened, last, start = last_run(workspace)
        settings = last.settings.model_copy(update={"workspace": opened.address})  # it may have been moved
        goes_on = is_pending(opened)
        check_asked(asked, goes_on=goes_on)
        if dry_run and goes_on:
            raise SettingsError("--dry-run: a removal is not finished: first run the command without it")
        if asked is not None and goes_on:
            given = {f"{asked[0]}s": str(asked[1].absolute())}
        elif asked is not None:
            path = asked[1].absolute()
            with chdir(start), step_progress("searching", show=common.shows_bars(as_json)):
                requested = request(settings, asked[0], path, twins=twins, most=most, yes=yes, dry_run=dry_run)
    found = None
    if goes_on or is_pending(opened):
        with chdir(start), common.flow_shown(as_json=as_json):
            from fineweb_mask.flows.ledger.remove import remove as run_remove

            found = run_remove(settings, **given, twins=twins, most=most, yes=yes)
            requested = requested or found.requested
    shown = {} if found is None else found.model_dump(mode="json")
    if as_json:
        asked_for = None if requested is None else requested.model_dump(mode="json")
        typer.echo(json.dumps({"status": "dry run" if dry_run else "done", **shown, "requested": asked_for}))
    else:
        _tell(requested, found, dry_run=dry_run)
    if found is not None and found.quarantined:
        raise typer.Exit(common.QUARANTINED)


def _tell(requested: "Requested | None", found: "RemovalSummary | None", *, dry_run: bool) -> None:
    if requested is not None:
        _tell_asked(requested, dry_run=dry_run)
    if found is None or found.receipt is None:
        return
    parts = [f"{found.selected:,} of the dataset", f"{found.copies:,} copies under other names"]
    if found.twins:
        parts.append(f"{found.twins:,} near-duplicates")
    echo(f"removed {found.documents:,} documents ({', '.join(parts)}); {found.added:,} next best added")
    if found.twins_left:
        echo(f"{found.twins_left:,} near-duplicates of them are left: --twins removes them")
    elif found.twins_left is None:
        echo("near-duplicates of them are not known: the recipe looks for none (ingest.near_dedup)")
    echo(f"{found.rewritten:,} of {found.dataset_files:,} files of the dataset are others than before")
    if found.deleted:
        echo(f"deleted, to be made again: {', '.join(map(visible, found.deleted))}")
    echo(f"receipt  {found.receipt}")


def _tell_asked(requested: "Requested", *, dry_run: bool) -> None:
    for name in requested.unknown_names[:LISTED]:
        echo(f"no document  {visible(name)}")
    if requested.unknown > LISTED:
        echo(f"no document  and {requested.unknown - LISTED:,} more: --json lists up to 1,000")
    for name in requested.twin_ids[:LISTED]:
        echo(f"near-duplicate  {visible(name)}")
    if dry_run:
        twins = requested.twins + (requested.twins_left or 0)
        echo(
            f"would remove {requested.documents:,} documents ({requested.selected:,} of {requested.of_dataset:,} in "
            f"the dataset, {requested.copies:,} copies); near-duplicates: "
            f"{'not known' if requested.twins_left is None else f'{twins:,}'}"
        )
    elif not requested.documents:
        echo(f"no document to remove now: the {requested.names:,} names are kept out of later runs")
