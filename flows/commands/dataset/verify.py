"""`fineweb-mask verify`: check a dataset against its provenance record."""

from typing import Annotated

import typer

from fineweb_mask.flows.commands import _common as common
from fineweb_mask.flows.display.terminal import SafeConsole, print_verification, verify_progress


def verify(
    dataset: Annotated[str, typer.Argument(help="Dataset folder, workspace, or URL (s3://, hf://datasets/...).")],
    *,
    as_json: common.AsJson = False,
) -> None:
    """Check a dataset against its provenance.json: every byte, rows and tokens; no missing, repeated or other files.

    Example: fineweb-mask verify workspaces/sample/dataset
    """
    from fineweb_mask.tasks.dataset.verify import VerifyError, find_dataset, read_provenance
    from fineweb_mask.tasks.dataset.verify import verify as verify_dataset

    with (
        common.exit_on_failure(as_json, "interrupted"),
        common.exit_on_error(as_json, common.WRONG_USAGE, (VerifyError,)),
    ):
        found = find_dataset(dataset)
        manifest = read_provenance(found)
        with verify_progress(sum(file.bytes for file in manifest.files.values()), show=not as_json) as advance:
            verification = verify_dataset(found, manifest, advance)
    common.print_result(verification, as_json, lambda: print_verification(SafeConsole(), verification))
    if verification.status == "broken":
        raise typer.Exit(common.FAILED)
