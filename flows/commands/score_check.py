"""`fineweb-mask score-check`: what a workspace's scores say inside every group of documents, without any label."""

from contextlib import chdir
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from fineweb_mask.flows.commands import _common as common
from fineweb_mask.flows.display.terminal import SafeConsole, echo, new_table
from fineweb_mask.flows.processes.environment import set_environment

if TYPE_CHECKING:
    from fineweb_mask.flows.score_check import ScoreCheckSummary

LISTED = 20


def score_check(
    workspace: Annotated[str, typer.Argument(help="Workspace of a run: a folder or URL.")],
    *,
    by: Annotated[str, typer.Option(help="Column whose values are the groups: a source, dump, language.")],
    pages: Annotated[int, typer.Option(help="Pages that are damaged and scored again, of all groups together.")] = 1000,
    show: common.Open = False,
    as_json: common.AsJson = False,
) -> None:
    """Say whether the scores order the documents inside every group, or only recognise the group. Needs no labels.

    For each group: the score's deviation inside it, its share of the best tenth, whether several scores agree, and how
    often a page is preferred to a damaged copy of it. Exit status 3 if there are warnings.

    Example: fineweb-mask score-check workspaces/sample --by dump
    """
    set_environment(show_bars=common.shows_bars(as_json))
    from fineweb_mask.flows.score_check import check_pages, scored
    from fineweb_mask.flows.status.inspection import last_run, look_at
    from fineweb_mask.tasks.audit.score_check import check_groups

    with common.exit_on_error(as_json):
        check_pages(pages)
        opened, last, start = last_run(workspace)
        settings = last.settings.model_copy(update={"workspace": opened.address})  # it may have been moved
        with chdir(start):
            check_groups(opened, scored(look_at(opened, settings))[1], by)
    with chdir(start), common.flow_shown(as_json=as_json):
        from fineweb_mask.flows.score_check import score_check as run_score_check

        found = run_score_check(settings, by, pages)
    common.print_result(found, as_json, lambda: _tell(found))
    common.end_with_page(settings, found, show=show)


def _tell(found: "ScoreCheckSummary") -> None:
    console = SafeConsole()
    table = new_table("group", "documents", "inside", "of all", "of best", "agree", "preferred")
    for group in found.groups[:LISTED]:
        one = group["scores"]["quality"]
        asked = one["prefers_page"]
        least = min(asked, key=lambda kind: asked[kind]) if asked else ""
        table.add_row(
            escape(group["group"] or "(empty)"),
            f"{group['documents']:,}",
            f"{one['deviation']:.0%}",
            f"{group['share']:.1%}",
            f"{one['of_the_best']:.1%}",
            "" if group["agreement"] is None else f"{group['agreement']:.2f}",
            f"{asked[least]:.0%} {least.split()[0]}" if asked else "",
        )
    console.print(table)
    echo(
        "inside: deviation in the group, of that of all; of best: its part of the best tenth; agree: rank correlation "
        "of the scores; preferred: pages before a damaged copy, at worst"
    )
    if len(found.groups) > LISTED:
        echo(f"and {len(found.groups) - LISTED:,} smaller groups, on the page")
    for name, one in found.scores.items():
        auc = (
            ""
            if one["group_auc"] is None
            else f"; {found.by} alone tells the best tenth with AUC {one['group_auc']:.2f}"
        )
        echo(f"{name}: {one['between_groups']:.0%} of the variance is between groups{auc}")
    common.tell_warnings(found)
    echo(f"page     {found.page}")
