"""`fineweb-mask push`: the dataset onto the Hugging Face hub."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from fineweb_mask.flows.commands._common import FAILED, WRONG_USAGE, fail
from fineweb_mask.flows.commands.sql import visible
from fineweb_mask.flows.commands.verify import print_verification, verify_progress

if TYPE_CHECKING:
    from fineweb_mask.tasks.dataset.push import Push


def push(
    workspace: Annotated[
        str,
        typer.Argument(help="Workspace or dataset: folder or URL, which is copied here first."),
    ],
    repository: Annotated[str, typer.Argument(help="Dataset repository on the hub.", metavar="OWNER/NAME")],
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what would go; touch no network.")] = False,
    private: Annotated[bool, typer.Option("--private", help="Make the repository private, if it is new.")] = False,
    revision: Annotated[str, typer.Option(help="Branch to commit to; made if it is not there.")] = "main",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object last on stdout.")] = False,
) -> None:
    """Verify the dataset and upload it to the Hugging Face hub; the token is that of HF_TOKEN or `hf auth login`.

    Example: fineweb-mask push workspaces/sample my-name/my-dataset --private --dry-run
    """
    from fineweb_mask.tasks.dataset.push import PushError, planned
    from fineweb_mask.tasks.dataset.push import push as push_dataset
    from fineweb_mask.tasks.dataset.verify import VerifyError, find_dataset, read_provenance, verify

    try:
        dataset = find_dataset(_here(workspace))
        manifest = read_provenance(dataset)
        plan = planned(Path(dataset.root), manifest, repository, revision)
    except (VerifyError, PushError, OSError, ValueError) as error:
        fail(visible(str(error)), as_json, WRONG_USAGE)
    try:
        with verify_progress(sum(file.bytes for file in manifest.files.values()), show=not as_json) as advance:
            verification = verify(dataset, manifest, advance)
        if verification.status == "broken":
            print_verification(Console(stderr=True), verification)
            fail(f"{workspace} is not pushed: its dataset is not what its provenance.json says", as_json, FAILED)
        show = sys.stderr.isatty() and not as_json
        done = plan if dry_run else push_dataset(Path(dataset.root), plan, private=private, show=show)
    except PushError as error:
        fail(visible(str(error)), as_json, FAILED)
    except KeyboardInterrupt:
        fail("interrupted; run the same command again to go on from here", as_json, 130)
    except Exception as error:  # noqa: BLE001 - the last place that can say what happened
        fail(visible(f"{type(error).__name__}: {error}"), as_json, FAILED)
    if as_json:
        typer.echo(done.model_dump_json())
    else:
        _print(Console(), done)


def _here(place: str) -> str:
    """Return the folder of a dataset on this machine; one at a URL is copied here first."""
    from fineweb_mask.models.urls import is_url, reject_credentials, require_writable
    from fineweb_mask.tasks.dataset.verify import find_dataset
    from fineweb_mask.tasks.storage.mirror import download_tree, ensure_local
    from fineweb_mask.tasks.workspace.workspace import Workspace

    if is_url(place):
        require_writable(reject_credentials(place))  # what is on the hub is there
    dataset = find_dataset(place)
    if dataset.is_local:
        return dataset.root
    if dataset.url == f"{place.rstrip('/')}/dataset":  # of a workspace, of which this machine may hold the files
        workspace = Workspace(reject_credentials(place))
        workspace.refresh_listing()
        return str(ensure_local(workspace.dataset))
    return str(download_tree(dataset.url))


def _print(console: Console, done: "Push") -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("file", no_wrap=True, overflow="fold")
    table.add_column("bytes", justify="right")
    for file in done.files:
        table.add_row(visible(file.file), f"{file.bytes:,}")
    console.print(table)
    what = "would be uploaded to" if done.status == "dry run" else "are in"
    total = f"{len(done.files):,} files, {done.bytes:,} bytes {what} {done.repository} ({done.revision})"
    console.print(total, highlight=False, markup=False, soft_wrap=True)
    if done.url:
        console.print(done.url, highlight=False, markup=False, soft_wrap=True)
    for name in done.deleted:
        console.print(f"deleted there, of an earlier push: {visible(name)}", highlight=False, markup=False)
    for name in done.others:
        console.print(f"there, and not of this dataset: {visible(name)}", style="yellow", markup=False)
