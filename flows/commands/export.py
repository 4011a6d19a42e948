"""`fineweb-mask export`: write a dataset as trainers read it."""

from pathlib import Path
from typing import Annotated

import typer
from pydantic import BaseModel

from fineweb_mask.flows.commands._common import Result, begin, shows_bars, verb
from fineweb_mask.flows.display.terminal import SafeConsole, print_paths, step_progress
from fineweb_mask.flows.recipe import validate
from fineweb_mask.models.errors import SettingsError


class ExportSummary(BaseModel):
    """What was exported; `fineweb-mask export --json` prints it."""

    status: str = "done"
    folder: str
    format: str
    files: int
    bytes: int
    documents: int
    tokens: int | None = None  # of the tokenizer, with the one at the end of each document
    cached: bool = False  # it was there already


@verb
def export(
    dataset: Annotated[str, typer.Argument(help="Workspace or dataset: a folder, or a URL.")],
    *,
    kind: Annotated[str, typer.Option("--format", help="parquet, megatron or nanotron.", metavar="KIND")],
    tokenizer: Annotated[
        str | None,
        typer.Option(help="For megatron and nanotron: a tokenizer.json, its folder, or a model of the hub."),
    ] = None,
    end_token: Annotated[
        str | None, typer.Option(help="The token after each document; by default the tokenizer's own.")
    ] = None,
    output: Annotated[
        str | None, typer.Option(help="Folder of the files; by default exports/FORMAT in the workspace.")
    ] = None,
    shuffle: Annotated[bool, typer.Option(help="Put all documents in random order.")] = True,
    seed: Annotated[int, typer.Option(help="Seed of the random order.")] = 0,
    file_size: Annotated[
        int | None, typer.Option(help="Bytes of the dataset's files that make one file.", show_default="100 MiB")
    ] = None,
) -> Result:
    """Write a dataset as training files: Parquet for nanochat or torchtitan, tokens for Megatron-LM or nanotron.

    Example: fineweb-mask export workspaces/sample --format megatron --tokenizer gpt2
    """
    from fineweb_mask.models.settings.output import ExportSettings
    from fineweb_mask.tasks.dataset.verify import find_dataset, read_provenance
    from fineweb_mask.tasks.export import ExportJob, check_folder, check_format
    from fineweb_mask.tasks.export import export as write
    from fineweb_mask.tasks.storage.atomic import tree_files

    given = {"tokenizer": tokenizer, "end_token": end_token, "file_size": file_size}
    settings = validate(
        ExportSettings,
        {"format": kind, "shuffle": shuffle, "seed": seed}
        | {name: value for name, value in given.items() if value is not None},
    )
    check_format(settings, "--format")
    found = find_dataset(dataset)
    folder = _folder(dataset, found.url, settings.folder, output)
    check_folder(folder, "--output", found.url)
    job = ExportJob(
        root=str(folder.absolute().parent),
        dataset=read_provenance(found).content,
        place=found.url,
        settings=settings,
        elsewhere=str(folder.absolute()),
    )
    current = job.current()
    begin("interrupted")
    with step_progress("exporting", show=shows_bars() and current is None):
        written = current or write(job)
    summary = ExportSummary(
        folder=str(folder),
        format=settings.format,
        files=len(tree_files(folder)) - 2,  # without the card and the record
        bytes=written.bytes,
        documents=written.rows,
        tokens=written.details.get("tokens"),
        cached=written.cached,
    )
    return Result(summary, lambda: _print_export(summary))


def _print_export(summary: ExportSummary) -> None:
    console = SafeConsole()
    tokens = "" if summary.tokens is None else f", {summary.tokens:,} tokens"
    console.print(
        f"{summary.format}: {summary.documents:,} documents{tokens} in {summary.files:,} files of "
        f"{summary.bytes / 1e6:,.1f} MB{' (there already)' if summary.cached else ''}"
    )
    print_paths(console, files=summary.folder, card=Path(summary.folder) / "README.md")


def _folder(dataset: str, url: str, name: str, output: str | None) -> Path:
    """Return where to write: what was asked for, or a place in the workspace or beside the dataset."""
    from fineweb_mask.models.urls import is_url
    from fineweb_mask.tasks.workspace.workspace import is_workspace

    if output is not None:
        if is_url(output):
            raise SettingsError(f"--output: {output} must be a folder of this machine")
        return Path(output)
    if is_url(dataset):
        raise SettingsError(f"--output: {dataset} is a URL: name a folder of this machine for the files")
    place = Path(dataset)
    around = place.parent if Path(url).absolute() == place.absolute() else place
    if around == place or is_workspace(around):
        return around / "exports" / name
    return place.absolute().with_name(f"{place.name}-{name}")
