"""`fineweb-mask rule`: take a selection's rule out of a workspace, and answer by it for other documents."""

from pathlib import Path
from typing import Annotated

import typer

from fineweb_mask.flows.commands._common import AsJson, Force, exit_on_error, exit_on_failure, print_result
from fineweb_mask.flows.display.terminal import echo

Folder = Annotated[str, typer.Argument(help="Workspace of a run.", metavar="WORKSPACE")]

rule = typer.Typer(no_args_is_help=True, help="Take a selection's rule with you, for documents that were not there.")


@rule.command()
def export(
    workspace: Folder,
    *,
    output: Annotated[Path, typer.Option("--output", help="File to write, in safetensors.")] = Path("rule.safetensors"),
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write the rule by which a workspace selects, or the one nearest to its selection, as one small file.

    Example: fineweb-mask rule export workspaces/sample --output rule.safetensors
    """
    from fineweb_mask.flows.status.inspection import inspect_workspace
    from fineweb_mask.flows.status.rule import export_from
    from fineweb_mask.tasks.outputs import check_output

    with exit_on_error(as_json):
        check_output(output, "--output", [workspace], replaces=force)
        found = inspect_workspace(workspace)
    with exit_on_failure(as_json, "interrupted; nothing was written"):
        written = export_from(found, output)
    line = f"{written.output}: {written.bytes:,} bytes, objective {written.objective:.4f}"
    print_result(written, as_json, lambda: echo(line))


@rule.command()
def apply(
    rule_file: Annotated[Path, typer.Argument(help="File that `rule export` wrote.", metavar="RULE")],
    source: Annotated[str, typer.Argument(help="Files of documents: a file, folder, pattern or URL.")],
    *,
    workspace: Annotated[str, typer.Option("--workspace", help="Workspace that the rule was exported from.")],
    output: Annotated[Path, typer.Option("--output", help="Parquet file to write.")] = Path("answers.parquet"),
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Say of every document whether the rule selects it: it is scored and embedded, and its vector is not kept.

    Example: fineweb-mask rule apply rule.safetensors new_dump/ --workspace workspaces/sample
    """
    from fineweb_mask.flows.status.inspection import inspect_workspace
    from fineweb_mask.flows.status.rule import apply_to
    from fineweb_mask.tasks.outputs import check_output
    from fineweb_mask.tasks.source.discovery import find_files

    with exit_on_error(as_json):
        files = find_files(source, "SOURCE")
        check_output(output, "--output", [rule_file, source, *(file.url for file in files), workspace], replaces=force)
        found = inspect_workspace(workspace)
    with exit_on_failure(as_json, "interrupted; nothing was written"):
        answered = apply_to(found, rule_file, files, output)
    left_out = f", {answered.left_out:,} without a text or vector" if answered.left_out else ""
    line = f"{answered.output}: {answered.selected:,} of {answered.documents:,} documents selected{left_out}"
    print_result(answered, as_json, lambda: echo(line))
