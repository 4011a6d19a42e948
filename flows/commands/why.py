"""`fineweb-mask why`: what every stage decided on a document."""

import sys
from typing import Annotated

import typer

from fineweb_mask.flows.commands import _common as common
from fineweb_mask.flows.display.terminal import echo, step_progress, visible
from fineweb_mask.flows.processes.environment import set_environment


def why(
    workspace: Annotated[str, typer.Argument(help="Workspace of a run: a folder or URL.")],
    documents: Annotated[list[str], typer.Argument(help="URLs or ids of documents.", metavar="URL|ID...")],
    *,
    as_json: common.AsJson = False,
) -> None:
    """Tell why a document is in the selection or not: every stage's decision, with its numbers.

    Exit status 3 if the source held no such document.

    Example: fineweb-mask why workspaces/sample https://example.org/page
    """
    set_environment()
    with common.exit_on_failure(as_json, "interrupted"), common.exit_on_error(as_json):
        from fineweb_mask.flows.ledger.answers import explained

        with step_progress("looking it up", show=sys.stderr.isatty() and not as_json):
            found = explained(workspace, documents)
    common.print_result(found, as_json, lambda: echo(visible(str(found), keep="\n")))
    if found.unknown:
        raise typer.Exit(common.QUARANTINED)
