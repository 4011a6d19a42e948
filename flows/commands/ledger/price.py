"""`fineweb-mask price`: whether new files are worth their embedding, before they are embedded."""

from contextlib import chdir
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from fineweb_mask.flows.commands import _common as common
from fineweb_mask.flows.display.terminal import SafeConsole, echo, new_table
from fineweb_mask.flows.processes.environment import set_environment
from fineweb_mask.models.urls import is_url

if TYPE_CHECKING:
    from fineweb_mask.flows.ledger.price import PriceSummary


def price(
    workspace: Annotated[str, typer.Argument(help="Workspace of a run: a folder or URL.")],
    files: Annotated[list[str], typer.Argument(help="Files, folders or URLs that may join it.")],
    *,
    sample: Annotated[int, typer.Option(help="Documents that are drawn from them.")] = 2_000,
    show: common.Open = False,
    as_json: common.AsJson = False,
) -> None:
    """Estimate what share of new files would be selected, what is new in them, and what embedding all would cost.

    A sample of them is ingested, scored and embedded by the workspace's own models, and selected from together with as
    large a share of its documents. Each estimate has an interval, to hold 19 times of 20 when the whole is run.

    Example: fineweb-mask price workspaces/mine new/CC-MAIN-2026-30
    """
    set_environment(show_bars=common.shows_bars(as_json))
    from fineweb_mask.flows.ledger.price import check
    from fineweb_mask.flows.status.inspection import last_run, look_at

    with common.exit_on_error(as_json):
        opened, last, start = last_run(workspace)
        settings = last.settings.model_copy(update={"workspace": opened.address})  # it may have been moved
        files = [path if is_url(path) else str(Path(path).absolute()) for path in files]
        with chdir(start):
            check(look_at(opened, settings), files, sample)
    with chdir(start), common.flow_shown(as_json=as_json):
        from fineweb_mask.flows.ledger.price import price as run_price

        found = run_price(settings, files, sample)
    common.print_result(found, as_json, lambda: _tell(found))
    common.end_with_page(settings, found, show=show)


def _tell(found: "PriceSummary") -> None:
    from fineweb_mask.tasks.ledger.price_page import lines

    console, table = SafeConsole(), new_table("of all documents", "expected", "19 of 20 times", "")
    for line in lines(found.model_dump()):
        table.add_row(*map(escape, line))
    console.print(table)
    for text in found.remarks:
        echo(f"note     {text}")
    echo(f"page     {found.page}")
