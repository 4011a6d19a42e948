"""`fineweb-mask verify`: check a dataset against its provenance record."""

from typing import Annotated

import typer

from fineweb_mask.flows.commands._common import (
    FAILED,
    WRONG_USAGE,
    AsJson,
    exit_on_error,
    exit_on_failure,
    print_result,
)
from fineweb_mask.flows.display.terminal import SafeConsole, print_verification, verify_progress


def verify(
    dataset: Annotated[str, typer.Argument(help="Dataset folder, workspace, or URL (s3://, hf://datasets/...).")],
    *,
    receipt: Annotated[
        str | None,
        typer.Option(help="Check that what this receipt of `remove` names is gone, too.", metavar="FILE"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check a dataset against its provenance.json: every byte, rows and tokens; no missing, repeated or other files.

    With a receipt, no text of a removed document may be in the dataset, nor, of a workspace, in any file of it.

    Example: fineweb-mask verify workspaces/sample/dataset
    """
    from fineweb_mask.models.urls import is_url, is_writable_url
    from fineweb_mask.tasks.dataset.verify import VerifyError, find_dataset, read_provenance
    from fineweb_mask.tasks.dataset.verify import verify as verify_dataset
    from fineweb_mask.tasks.ledger.receipt import Receipt, check_workspace
    from fineweb_mask.tasks.workspace.workspace import Workspace

    with exit_on_failure(as_json, "interrupted"), exit_on_error(as_json, WRONG_USAGE, (VerifyError,)):
        removed = None if receipt is None else Receipt.read(receipt)
        found = find_dataset(dataset)
        manifest = read_provenance(found)
        with verify_progress(sum(file.bytes for file in manifest.files.values()), show=not as_json) as advance:
            unwanted = None if removed is None else removed.unwanted
            verification = verify_dataset(found, manifest, advance, unwanted)
        is_readable_only = is_url(dataset) and not is_writable_url(dataset)  # such as one on the hub
        if removed is not None and not is_readable_only and found.url.rstrip("/") != dataset.rstrip("/"):
            problems = check_workspace(Workspace(dataset), removed, manifest.content)
            verification = verification.model_copy(
                update={
                    "problems": [*verification.problems, *problems],
                    "status": "broken" if problems else verification.status,
                }
            )
    print_result(verification, as_json, lambda: print_verification(SafeConsole(), verification))
    if verification.status == "broken":
        raise typer.Exit(FAILED)
