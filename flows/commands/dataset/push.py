"""`fineweb-mask push`: upload a dataset to the Hugging Face hub."""

from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from fineweb_mask.flows.commands import _common as common
from fineweb_mask.flows.display.terminal import SafeConsole, print_line, print_verification, verify_progress, visible

if TYPE_CHECKING:
    from fineweb_mask.tasks.dataset.push import Push


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
    as_json: common.AsJson = False,
) -> None:
    """Verify the dataset and upload it to the Hugging Face hub; the token is that of HF_TOKEN or `hf auth login`.

    Example: fineweb-mask push workspaces/sample my-name/my-dataset --private --dry-run
    """
    from fineweb_mask.tasks.dataset.push import planned
    from fineweb_mask.tasks.dataset.push import push as push_dataset
    from fineweb_mask.tasks.dataset.verify import find_dataset, read_provenance, verify

    with ExitStack() as opened:
        with common.exit_on_error(as_json):
            dataset = find_dataset(_local_dataset(workspace, opened))
            manifest = read_provenance(dataset)
            plan = planned(Path(dataset.root), manifest, repository, revision)
        with common.exit_on_failure(as_json):
            with verify_progress(sum(file.bytes for file in manifest.files.values()), show=not as_json) as advance:
                verification = verify(dataset, manifest, advance)
            if verification.status == "broken":
                print_verification(SafeConsole(stderr=True), verification)
                common.fail(
                    f"{workspace} is not pushed: the dataset differs from its provenance.json", as_json, common.FAILED
                )
            if not dry_run:
                plan = push_dataset(Path(dataset.root), plan, private=private, show=common.shows_bars(as_json))
        common.print_result(plan, as_json, lambda: _print(SafeConsole(), plan))


def _local_dataset(place: str, opened: ExitStack) -> str:
    """Return the folder of a dataset on this machine; one at a URL is downloaded, and deleted with `opened`."""
    from fineweb_mask.models.urls import is_url, reject_credentials, require_writable
    from fineweb_mask.tasks.dataset.verify import find_dataset
    from fineweb_mask.tasks.storage.remote.copies import default_scratch, download_tree

    if is_url(place):
        require_writable(reject_credentials(place))  # a dataset on the hub need not be pushed
    dataset = find_dataset(place)
    if dataset.is_local:
        return dataset.root
    default_scratch().mkdir(parents=True, exist_ok=True)
    folder = opened.enter_context(TemporaryDirectory(prefix="dataset-", dir=default_scratch()))
    download_tree(dataset.url, Path(folder))
    return folder


def _print(console: Console, done: "Push") -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("file", no_wrap=True, overflow="fold")
    table.add_column("bytes", justify="right")
    for file in done.files:
        table.add_row(visible(file.file), f"{file.bytes:,}")
    console.print(table)
    what = "would be uploaded to" if done.status == "dry run" else "are in"
    print_line(console, f"{len(done.files):,} files, {done.bytes:,} bytes {what} {done.repository} ({done.revision})")
    if done.url:
        print_line(console, done.url)
    for name in done.deleted:
        print_line(console, f"deleted from an earlier push: {visible(name)}")
    for name in done.others:
        print_line(console, f"in the repository, but not of this dataset: {visible(name)}", style="yellow")
