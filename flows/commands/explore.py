"""`fineweb-mask explore`: show the documents of a workspace on a map in the browser."""

import secrets
import socket
import sys
import webbrowser
from contextlib import chdir, nullcontext, suppress
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fineweb_mask.flows.commands._common import begin, verb
from fineweb_mask.flows.display.terminal import echo, step_progress
from fineweb_mask.models.errors import SettingsError

if TYPE_CHECKING:
    from fineweb_mask.flows.pipeline.run import Run
    from fineweb_mask.tasks.explore import OtherSelection

MOST = 50_000
PORTS = 20
"""Ports that are tried, from the one that is asked for."""


@verb
def explore(
    workspace: Annotated[str, typer.Argument(help="Workspace of a finished run: a folder, or a URL such as s3://.")],
    *,
    documents: Annotated[int, typer.Option(help="Most documents on the map; of more, a random sample.", min=1)] = MOST,
    against: Annotated[
        str | None,
        typer.Option(help="Another workspace of the same documents, whose selection is compared.", metavar="WORKSPACE"),
    ] = None,
    export: Annotated[
        Path | None, typer.Option(help="Write the map as a folder for any web server, and show nothing.")
    ] = None,
    port: Annotated[int, typer.Option(help="Port on this machine, or the next that is free.", min=1, max=65535)] = 5055,
    show: Annotated[bool, typer.Option("--open/--no-open", help="Open the map in a browser.")] = True,
) -> None:
    """Show the documents on a map: what is kept and what is not, near-duplicates, topics, texts; search and lasso.

    The page is that of embedding-atlas: `pip install --no-deps embedding-atlas==0.22.0` first.

    Example: fineweb-mask explore workspaces/sample
    """
    from fineweb_mask.flows.display.explorer import page_files, serve, write_folder
    from fineweb_mask.flows.ledger.answers import explained
    from fineweb_mask.flows.status.inspection import inspect_recipe, last_run
    from fineweb_mask.tasks.explore import ExploreJob
    from fineweb_mask.tasks.explore import explore as prepare
    from fineweb_mask.tasks.outputs import check_output

    if export is not None:
        check_output(export, "--export", [workspace, against or workspace], folder=True)
    page_files()
    opened, last, folder = last_run(workspace)
    other = None if against is None else _other(against, workspace)
    with nullcontext() if export is not None else _listener(port) as listener:
        begin("interrupted; run the same command again")
        with chdir(folder), step_progress("preparing the map", show=sys.stderr.isatty()):
            selected = _selected(inspect_recipe(opened, last.settings), str(opened.root), vectors=True)
            job = ExploreJob(**selected, most=documents, other=other)
            if not (job.current() or sys.stderr.isatty()):
                echo("preparing the map", err=True)
            prepared = prepare(job)
        if export is not None:
            write_folder(job.path, export)
            echo(f"map      {export}: show it by `{Path(sys.executable).name} -m http.server --directory {export}`")
        if listener is not None:
            token = secrets.token_urlsafe(16)
            url = f"http://127.0.0.1:{listener.getsockname()[1]}/{token}/"
            echo(f"map      {url}  {prepared.rows:,} documents; Ctrl-C ends it")
            if show:
                Thread(target=webbrowser.open, args=[url], daemon=True).start()  # a text browser ends with its page
            with chdir(folder):
                serve(job.path, listener, token, lambda name: str(explained(opened.address, [name])))


def _selected(found: "Run", folder: str, *, vectors: bool) -> "dict[str, Any]":
    """Return where a workspace is and its shards that were selected from, with their vectors if these are needed.

    Raises
    ------
    SettingsError
        If there is none.
    """
    from fineweb_mask.flows.pipeline.records import shard_files

    shards = [shard for shard in shard_files(found) if shard.masks.path and (shard.embeddings.path or not vectors)]
    if not shards:
        raise SettingsError(f"{folder} has no selected documents with vectors: run its recipe to the end")
    return {"root": found.workspace.address, "shards": shards}


def _other(folder: str, own: str) -> "OtherSelection":
    from fineweb_mask.flows.status.inspection import inspect_workspace
    from fineweb_mask.tasks.explore import OtherSelection

    name, own_name = (place.rstrip("/").rpartition("/")[2] for place in (folder, own))
    return OtherSelection(
        name=folder if name == own_name else name, **_selected(inspect_workspace(folder), folder, vectors=False)
    )


def _listener(first: int) -> socket.socket:
    """Return a socket that listens at the first port from `first` on where nothing does."""
    for port in range(first, min(first + PORTS, 65536)):
        with suppress(OSError):
            return socket.create_server(("127.0.0.1", port))
    raise SettingsError(f"the ports {first} to {first + PORTS - 1} are in use: name another one by --port")
