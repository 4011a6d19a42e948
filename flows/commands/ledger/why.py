"""`fineweb-mask why`: what every stage decided on a document, or would decide on a text."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from fineweb_mask.flows.commands import _common as common
from fineweb_mask.flows.display.terminal import echo, step_progress, visible
from fineweb_mask.flows.processes.environment import set_environment


def why(
    workspace: Annotated[str, typer.Argument(help="Workspace of a run: a folder or URL.")],
    documents: Annotated[
        list[str] | None, typer.Argument(help="URLs or ids of documents.", metavar="URL|ID...")
    ] = None,
    *,
    text: Annotated[
        Path | None, typer.Option(help="File with a text: its documents, or what would become of it.", metavar="FILE")
    ] = None,
    as_json: common.AsJson = False,
) -> None:
    """Tell why a document is in the selection or not: every stage's decision, with its numbers.

    What ingest dropped is looked for in the source. Exit status 3 if a document is not found.

    Example: fineweb-mask why workspaces/sample https://example.org/page
    """
    if not documents and text is None:
        common.fail("why takes URLs or ids of documents, or --text FILE: name one", as_json, common.WRONG_USAGE)
    set_environment()
    with common.exit_on_failure(as_json, "interrupted"), common.exit_on_error(as_json):
        texts = {} if text is None else {str(text): _read(text)}
        from fineweb_mask.flows.ledger.answers import explained

        with step_progress("looking it up", show=sys.stderr.isatty() and not as_json):
            found = explained(workspace, documents or [], texts)
    common.print_result(found, as_json, lambda: echo(visible(str(found), keep="\n")))
    if found.unknown:
        raise typer.Exit(common.QUARANTINED)


def _read(file: Path) -> str:
    """Return the text of a file, in which bytes that are no UTF-8 are replaced."""
    return file.read_text(encoding="utf-8", errors="replace")
