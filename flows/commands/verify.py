"""`fineweb-mask verify`: whether a dataset is what its provenance record says."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from fineweb_mask.flows.commands._common import FAILED, WRONG_USAGE, fail
from fineweb_mask.flows.commands.sql import visible

if TYPE_CHECKING:
    from fineweb_mask.tasks.dataset.verify import Verification


def verify(
    dataset: Annotated[str, typer.Argument(help="Dataset folder, workspace, or URL (s3://, hf://datasets/...).")],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object last on stdout.")] = False,
) -> None:
    """Check a dataset against its provenance.json: every byte, the rows and tokens, nothing missing, twice or else.

    Example: fineweb-mask verify workspaces/sample/dataset
    """
    from fineweb_mask.tasks.dataset.verify import VerifyError, find_dataset, read_provenance
    from fineweb_mask.tasks.dataset.verify import verify as verify_dataset

    try:
        found = find_dataset(dataset)
        manifest = read_provenance(found)
        with verify_progress(sum(file.bytes for file in manifest.files.values()), show=not as_json) as advance:
            verification = verify_dataset(found, manifest, advance)
    except VerifyError as error:
        fail(visible(str(error)), as_json, WRONG_USAGE)
    except KeyboardInterrupt:
        fail("interrupted", as_json, 130)
    except Exception as error:  # noqa: BLE001 - the last place that can say what happened
        fail(visible(f"{type(error).__name__}: {error}"), as_json, FAILED)
    if as_json:
        typer.echo(verification.model_dump_json())
    else:
        print_verification(Console(), verification)
    if verification.status == "broken":
        raise typer.Exit(FAILED)


@contextmanager
def verify_progress(total: int, *, show: bool) -> Iterator[Callable[[int], None]]:
    """Show on a terminal how many of the bytes are read."""
    if not show or not sys.stderr.isatty():
        yield lambda _: None
        return
    columns = (TextColumn("verifying"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("verifying", total=total)
        yield lambda size: progress.advance(task, size)


def print_verification(console: Console, found: "Verification") -> None:
    """Print what was checked, and what is wrong."""
    for problem in found.problems:
        line = f"{visible(problem.file)}: {visible(problem.problem)}"
        console.print(line, style="red", highlight=False, markup=False, soft_wrap=True)
    outcome = f"{len(found.problems):,} wrong" if found.problems else "as recorded"
    console.print(
        f"{visible(found.dataset)}: {outcome}\n"
        f"files {found.files:,}  bytes {found.bytes:,}  documents {found.rows:,}  tokens {found.tokens:,}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    if found.repeated_ids:
        console.print(
            f"{found.repeated_ids:,} ids are those of several documents, as the source gave them", style="dim"
        )
