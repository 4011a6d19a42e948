"""`fineweb-mask explore`: show the documents of a workspace on a map in the browser."""

import secrets
import socket
import sys
import webbrowser
from contextlib import chdir
from threading import Thread
from typing import Annotated

import typer

from fineweb_mask.flows.commands._common import begin, verb
from fineweb_mask.flows.display.terminal import echo, step_progress
from fineweb_mask.models.errors import SettingsError

MOST = 10_000


@verb
def explore(
    workspace: Annotated[str, typer.Argument(help="Workspace of a finished run: a folder, or a URL such as s3://.")],
    *,
    documents: Annotated[
        int,
        typer.Option(
            help="Most documents on the map, of which 10,000 take half a minute; of more, a random sample.", min=1
        ),
    ] = MOST,
    port: Annotated[int, typer.Option(help="Port on this machine; 0: any that is free.", min=0, max=65535)] = 0,
    show: Annotated[bool, typer.Option("--open/--no-open", help="Open the map in a browser.")] = True,
) -> None:
    """Show the documents on a map: what is kept and what is not, near-duplicates, topics, texts; search and lasso.

    The page is that of embedding-atlas: `pip install --no-deps embedding-atlas==0.22.0` first.

    Example: fineweb-mask explore workspaces/sample
    """
    from fineweb_mask.flows.display.explorer import page_files, serve
    from fineweb_mask.flows.pipeline.records import shard_files
    from fineweb_mask.flows.status.inspection import inspect_recipe, last_run
    from fineweb_mask.tasks.explore import ExploreJob
    from fineweb_mask.tasks.explore import explore as prepare

    page_files()
    opened, last, folder = last_run(workspace)
    try:
        listener = socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise SettingsError(f"the port {port} is in use: name another one by --port") from error
    with listener:
        begin("interrupted; run the same command again")
        with chdir(folder), step_progress("preparing the map", show=sys.stderr.isatty()):
            found = shard_files(inspect_recipe(opened, last.settings))
            shards = [shard for shard in found if shard.masks.path and shard.embeddings.path]
            if not shards:
                raise SettingsError(f"{workspace} has no selected documents with vectors: run its recipe to the end")
            job = ExploreJob(root=opened.address, shards=shards, most=documents)
            if not (job.current() or sys.stderr.isatty()):
                echo("preparing the map", err=True)
            prepared = prepare(job)
        token = secrets.token_urlsafe(16)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/{token}/"
        echo(f"map      {url}  {prepared.rows:,} documents; Ctrl-C ends it")
        if show:
            Thread(target=webbrowser.open, args=[url], daemon=True).start()  # a text browser ends with its page
        serve(job.path, listener, token)
