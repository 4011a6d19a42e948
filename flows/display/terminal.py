"""Print tables, paths and texts on a terminal, for several commands.

Names and errors come from files that anybody may have written. What a command prints goes through `SafeConsole` or
`echo`, and what is logged through `logs_made_visible`, so that none of it controls the terminal.
"""

import logging
import sys
import traceback
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from fineweb_mask.flows.processes.environment import server_lost
from fineweb_mask.models.runtime.progress import Step, reporting_to
from fineweb_mask.models.settings.selection import METRICS

if TYPE_CHECKING:
    from fineweb_mask.flows.summary import PageSummary
    from fineweb_mask.tasks.workspace.records.runs import QuarantinedShard

WIDTH = 1_000  # characters, more than any table needs: no number is cut, and a narrower terminal wraps the lines
INVISIBLE = frozenset({"Cc", "Cf", "Co", "Cs", "Zl", "Zp"})
"""Unicode categories of characters that control a terminal, change the text direction, or cannot be seen."""


def visible(text: str, keep: str = "") -> str:
    r"""Return a text with control and invisible characters escaped, such as \x1b; those in `keep` stay."""
    return "".join(
        character
        if character in keep or unicodedata.category(character) not in INVISIBLE
        else character.encode("unicode_escape").decode()
        for character in text
    )


class SafeConsole(Console):
    """A console that shows the control characters of what is printed, and uses only its own."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of what is printed; those that Rich makes itself, such as a cursor's moves, stay."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text, keep="\n"), segment.style)


def echo(text: str, *, err: bool = False) -> None:
    """Print lines as they are, with control characters shown."""
    stream = sys.stderr if err else sys.stdout  # typer would write UTF-8 where that is not the encoding
    stream.write(visible(text, keep="\n") + "\n")
    stream.flush()


def _make_visible(record: logging.LogRecord) -> bool:
    """Show the control characters of a record's message and of its error; the record is logged."""
    record.msg, record.args = visible(record.getMessage(), keep="\n"), ()
    if record.exc_info and not record.exc_text:
        record.exc_text = visible("".join(traceback.format_exception(*record.exc_info)).rstrip(), keep="\n")
    return True


NO_NEWS = frozenset({"prefect.task_runs", "APILogWorker", "EventsWorker", "prefect.events.utilities"})
"""Loggers of Prefect's task runs, and of what says how many lines and events its server has yet to take, or missed."""
EVENTS = "prefect.events.clients"  # says why that is
_said: set[str] = set()


def _is_news(record: logging.LogRecord) -> bool:
    """Leave out what `NO_NEWS` logs, what `EVENTS` does again, that a flow failed, and a lost server's errors.

    The command says why a flow failed; of a server that does not answer any more, Prefect would say so again and again.
    """
    kind = record.exc_info[0] if record.exc_info else None
    is_of_server = record.name == EVENTS or (kind is not None and kind.__module__ in ("httpx", "prefect.exceptions"))
    is_end = record.name == "prefect.flow_runs" and record.levelno >= logging.ERROR
    is_again = record.name == EVENTS and EVENTS in _said
    _said.add(record.name)
    return not (is_end or is_again or record.name in NO_NEWS or (is_of_server and server_lost.is_set()))


def logs_made_visible(*, verbose: bool = False) -> None:
    """Have every log of this process that goes to the terminal show control characters.

    Unless `verbose`, Prefect logs warnings alone there, in the words of our own; the Prefect UI has the rest.
    """
    loggers = [logging.getLogger(), *(logging.getLogger(name) for name in list(logging.root.manager.loggerDict))]
    for handler in {handler for logger in loggers for handler in logger.handlers}:
        if isinstance(handler, logging.StreamHandler) and _make_visible not in handler.filters:
            handler.addFilter(_make_visible)
            if not verbose:
                handler.addFilter(_is_news)
                if type(handler).__module__.startswith("prefect."):
                    handler.setLevel(logging.WARNING)
                    handler.setFormatter(logging.Formatter("%(message)s"))


def told(lines: Iterable[tuple[str, str]]) -> list[str]:
    """Return lines with what each is about before it, in a column.

    >>> told([("reads", "1 file")])
    ['reads      1 file']
    """
    return [f"{about:<10} {line}" for about, line in lines]


def new_table(first: str, *numbers: str, no_wrap: bool = False) -> Table:
    """Return a table with a first column of text and right-aligned columns of numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first, no_wrap=no_wrap)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=no_wrap)
    return table


def print_line(console: Console, line: str, style: str | None = None) -> None:
    """Print a line as it is: not wrapped, without markup or highlighting."""
    console.print(line, style=style, highlight=False, markup=False, soft_wrap=True)


LEARNED = (
    "learned: how much better a small language model predicts held-out text than after random documents (-: worse)"
)


def print_paths(console: Console, **paths: object) -> None:
    """Print a line for each named path."""
    for name, path in paths.items():
        print_line(console, f"{name:8} {path}")


def print_quarantined(console: Console, shards: "Iterable[QuarantinedShard]") -> None:
    """Print the quarantined shards with their reasons."""
    for shard in shards:
        print_line(console, f"quarantined  {shard.shard}: {shard.reason}", "yellow")


def print_selections(
    title: str,
    rows: Iterable[tuple[str, dict[str, Any]]],
    metrics: Sequence[str],
    summary: "PageSummary",
    *,
    best: str = "",
    note: str = "",
) -> None:
    """Print a line for each selection, a note on them, the quarantined shards, and where the page is."""
    console = SafeConsole(width=WIDTH)
    found = {name: _figures(one, metrics) for name, one in rows}
    columns = next(iter(found.values()))
    shown = [name for name in columns if any(row[name] for row in found.values())]  # others are empty
    table = new_table(title, *shown, no_wrap=True)
    for name, row in found.items():
        table.add_row(Text(name), *(row[column] for column in shown), style="bold" if name == best else None)
    console.print(table)
    for line in filter(None, (note, LEARNED if "learned" in shown else "")):
        console.print(line, highlight=False)
    print_quarantined(console, summary.quarantined)
    print_paths(console, page=summary.page, metrics=summary.metrics)


def _figures(one: dict[str, Any], metrics: Sequence[str]) -> dict[str, str]:
    """Return what stands in each column; nothing where it is not known."""
    from fineweb_mask.tasks.reporting.templating import FORMS

    topics, gap, seconds = one.get("effective_topics"), one["gap"], one["seconds"]
    return {
        "quality": f"{one['mean_quality']:.4f}",
        **{name: f"{one[name]:.{METRICS[name].decimals}f}" for name in metrics},
        "near-dup": f"{one['near_duplicates']:.1%}",
        "learned": "" if one["teaching"] is None else f"{one['teaching']:+.1%}",
        "topics": "" if topics is None else f"{topics:.1f}",
        "J": f"{one['objective']:.4f}",
        "gap": "" if gap is None else FORMS["gap"](gap),
        "seconds": "" if seconds is None else f"{seconds:.1f}",
    }


@contextmanager
def step_progress(what: str, *, show: bool, size: int | None = None) -> Iterator[Callable[[int], None]]:
    """Show a bar of the work in the block, with the loop that it is in.

    Yield the function that adds to what is done of `size`. Of work that has none and does not say how far it is as a
    whole, the bar is that of the loop.
    """
    columns = (TextColumn(what), BarColumn(bar_width=None), TextColumn("{task.description}"), TimeElapsedColumn())
    left = TimeRemainingColumn(compact=True)
    with Progress(*columns, left, console=SafeConsole(stderr=True), transient=True, disable=not show) as progress:
        task = progress.add_task("", total=size)

        def advance(fraction: float, steps: tuple[Step, ...]) -> None:
            done, total = (fraction, 1.0) if fraction or not steps else (steps[0].done, steps[0].total)
            progress.update(task, completed=done, total=total, description=str(steps[-1]) if steps else "")

        with reporting_to(advance):
            yield lambda more: progress.advance(task, more)
