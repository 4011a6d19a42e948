"""How the commands that look at many selections print them."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from fineweb_mask.models.settings.selection import METRICS

if TYPE_CHECKING:
    from fineweb_mask.flows.summary import PageSummary

WIDTH = 100  # characters: what the table needs; a narrower terminal wraps its lines


def print_selections(
    title: str, rows: Iterable[tuple[str, dict[str, Any]]], summary: "PageSummary", *, best: str = "", said: str = ""
) -> None:
    """Print a line for each selection, what is `said` of them, what was set aside, and where the page lies."""
    console = Console()
    console = Console(width=max(WIDTH, console.width))
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(title, no_wrap=True)
    for name in ("quality", *METRICS, "near-dup", "topics", "J", "gap", "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, one in rows:
        table.add_row(name, *_figures(one), style="bold" if name == best else None)
    console.print(table)
    if said:
        console.print(said, highlight=False)
    for shard in summary.quarantined:
        console.print(f"quarantined  {shard.shard}: {shard.reason}", style="yellow", markup=False)
    for name, path in (("page", summary.page), ("metrics", summary.metrics)):
        console.print(f"{name:8} {path}", highlight=False, soft_wrap=True, markup=False)


def _figures(one: dict[str, Any]) -> list[str]:
    topics, gap, seconds = one.get("effective_topics"), one["gap"], one["seconds"]
    return [
        f"{one['mean_quality']:.4f}",
        *(f"{one[name]:.{entry.decimals}f}" for name, entry in METRICS.items()),
        f"{one['near_duplicates']:.1%}",
        "" if topics is None else f"{topics:.1f}",
        f"{one['objective']:.4f}",
        "" if gap is None else f"{gap:.3%}",
        "" if seconds is None else f"{seconds:.1f}",
    ]
