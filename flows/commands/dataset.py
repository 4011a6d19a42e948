"""`fineweb-mask verify`, `push`: check a dataset, upload it to the hub."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Annotated

import typer

from fineweb_mask.flows.commands._common import FAILED, Result, begin, shows_bars, verb
from fineweb_mask.flows.display.terminal import SafeConsole, new_table, print_line, step_progress

if TYPE_CHECKING:
    from fineweb_mask.tasks.dataset.push import Push
    from fineweb_mask.tasks.dataset.verify import Verification


@verb
def verify(
    dataset: Annotated[str, typer.Argument(help="Dataset folder, workspace, or URL (s3://, hf://datasets/...).")],
) -> Result:
    """Check a dataset against its provenance.json: every byte, rows and tokens; no missing, repeated or other files.

    Example: fineweb-mask verify workspaces/sample/dataset
    """
    from fineweb_mask.tasks.dataset.verify import find_dataset
    from fineweb_mask.tasks.dataset.verify import verify as verify_dataset

    found = find_dataset(dataset)
    begin("interrupted")
    with step_progress("verifying", show=shows_bars(), size=found.size) as read:
        verification = verify_dataset(found, read)
    code = FAILED if verification.status == "broken" else 0
    return Result(verification, lambda: _print_verification(verification), code)


def _print_verification(verification: "Verification") -> None:
    """Print what was checked, and the problems found."""
    console = SafeConsole()
    for problem in verification.problems:
        print_line(console, f"{problem.file}: {problem.problem}", style="red")
    estimated = verification.tokens_estimated
    tokens = f"tokens {verification.tokens:,}" if estimated is None else f"tokens about {estimated:,} (estimated)"
    outcome = f"{len(verification.problems):,} wrong" if verification.problems else "as recorded"
    print_line(
        console,
        f"{verification.dataset}: {outcome}\nfiles {verification.files:,}  bytes {verification.bytes:,}  "
        f"documents {verification.rows:,}  {tokens}",
    )
    if verification.repeated_ids:
        print_line(console, f"{verification.repeated_ids:,} ids are shared by different documents, as in the source")


@verb
def push(
    workspace: Annotated[
        str,
        typer.Argument(help="Workspace or dataset: a folder, or a URL, from which it is downloaded first."),
    ],
    repository: Annotated[str, typer.Argument(help="Dataset repository on the hub.", metavar="OWNER/NAME")],
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the files to upload; use no network.")] = False,
    private: Annotated[bool, typer.Option("--private", help="Make the repository private, if it is new.")] = False,
    revision: Annotated[str, typer.Option(help="Branch to commit to; created if it does not exist.")] = "main",
) -> Result:
    """Verify the dataset and upload it to the Hugging Face hub; the token is that of HF_TOKEN or `hf auth login`.

    Example: fineweb-mask push workspaces/sample my-name/my-dataset --private --dry-run
    """
    from fineweb_mask.tasks.dataset.push import push as push_dataset

    shown = shows_bars()

    def progress(size: int) -> AbstractContextManager[Callable[[int], None]]:
        begin()
        return step_progress("verifying", show=shown, size=size)

    done = push_dataset(
        workspace, repository, revision, private=private, dry_run=dry_run, show=shown, progress=progress
    )
    return Result(done, lambda: _print_push(done))


def _print_push(done: "Push") -> None:
    console, table = SafeConsole(), new_table("file", "bytes")
    for name, size in done.files.items():
        table.add_row(name, f"{size:,}")
    console.print(table)
    what = "would be uploaded to" if done.status == "dry run" else "are in"
    print_line(console, f"{len(done.files):,} files, {done.bytes:,} bytes {what} {done.repository} ({done.revision})")
    if done.url:
        print_line(console, done.url)
    for name in done.deleted:
        print_line(console, f"deleted from an earlier push: {name}")
    for name in done.others:
        print_line(console, f"in the repository, but not of this dataset: {name}", style="yellow")
