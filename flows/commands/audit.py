"""`fineweb-mask audit`: measure the precision and recall of every step of a recipe that drops documents."""

from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from fineweb_mask.flows.commands import _common as common
from fineweb_mask.flows.display.terminal import SafeConsole, echo, new_table

if TYPE_CHECKING:
    from fineweb_mask.flows.audit import AuditSummary
    from fineweb_mask.models.settings import PipelineSettings


def audit(
    recipe: common.Recipe,
    *,
    by: Annotated[
        str | None,
        typer.Option(help="Column by whose values losses are counted.", show_default="source file", metavar="COLUMN"),
    ] = None,
    documents: Annotated[int, typer.Option(help="Documents that are drawn from the source, about.")] = 20_000,
    overrides: common.Overrides = None,
    workspace: common.WorkspaceFolder = None,
    show: common.Open = False,
    as_json: common.AsJson = False,
) -> None:
    """Measure what every step drops: how many pairs are really alike, what is found of planted cases, which groups go.

    A sample with planted copies, templates and clean pages goes through the recipe's own ingest and deduplication.
    Exit status 3 if there are warnings.

    Example: fineweb-mask audit mine.yaml --by source
    """

    def check(settings: "PipelineSettings") -> None:
        from fineweb_mask.flows.audit import check as check_audit

        check_audit(settings, by, documents)

    def run(settings: "PipelineSettings", _: None) -> "AuditSummary":
        from fineweb_mask.flows.audit import audit as run_audit

        return run_audit(settings, by, documents)

    common.run_to_page(recipe, overrides, workspace, check=check, run=run, tell=_tell, show=show, as_json=as_json)


def _tell(_: "PipelineSettings", found: "AuditSummary") -> None:
    from fineweb_mask.tasks.audit.audit import STEP_HEADER, step_row

    console, table = SafeConsole(), new_table("step", *STEP_HEADER)
    for step in found.steps:
        table.add_row(*map(escape, step_row(step)))
    console.print(table)
    common.tell_warnings(found)
    echo(f"page     {found.page}")
