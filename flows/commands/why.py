"""`fineweb-mask why`: what every stage decided on a document."""

from typing import Annotated

import typer

from fineweb_mask.flows.commands._common import QUARANTINED, Result, shows_bars, verb
from fineweb_mask.flows.display.terminal import echo, step_progress, visible
from fineweb_mask.flows.processes.environment import set_environment


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
    from fineweb_mask.flows.ledger.answers import explained

    with step_progress("looking it up", show=shows_bars()):
        found = explained(workspace, documents)
    return Result(found, lambda: echo(visible(str(found), keep="\n")), QUARANTINED if found.unknown else 0)
