"""`fineweb-mask sql`: query a workspace in SQL."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Literal

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fineweb_mask.flows.commands._common import Force, begin, errors_as_json, verb
from fineweb_mask.flows.display.terminal import SafeConsole, echo, visible
from fineweb_mask.models.errors import SettingsError

if TYPE_CHECKING:
    from fineweb_mask.tasks.catalog.query import Answer, Preview
    from fineweb_mask.tasks.workspace.workspace import Workspace

FORMATS = ("table", "csv", "json", "parquet")
CELL_CHARACTERS = 60
"""Longest value in a table; the other formats hold complete values."""
LISTED_CHARACTERS = 1_000
"""Longest value in a list, which replaces a table whose columns do not fit on the terminal."""
COLUMN_WIDTH = 10
"""Narrowest average column of a table; below that the answer is printed as a list."""
PIPE_WIDTH = 10_000
"""Width without a terminal: enough for every column."""


@verb
def sql(
    workspace: Annotated[
        str, typer.Argument(help="Workspace folder or URL; from a URL the queried files are downloaded first.")
    ],
    query: Annotated[str, typer.Argument(help="SQL; - reads standard input.")],
    *,
    form: Annotated[str, typer.Option("--format", help="table, csv, json or parquet.", metavar="FORMAT")] = "table",
    output: Annotated[
        Path | None, typer.Option(help="Write to this file (csv, json, parquet) instead of standard output.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Rows shown in a table.")] = 40,
    memory_limit: Annotated[str, typer.Option(help="Memory that DuckDB may use before it spills to disk.")] = "2GB",
    force: Force = False,
    json: Annotated[bool, typer.Option("--json", help="Same as --format json.")] = False,
) -> None:
    """Query a workspace in SQL: `show tables` lists the views.

    The view fates has a row for every document that the source held: shard, row, source_row, stage, reason, selected,
    inclusion, block, twin, twin_shard, twin_row, similarity, quality and all scores, id, url and the source's columns.

    Example: fineweb-mask sql workspaces/sample "select dump, count(*), avg(quality) from selected group by dump"
    """
    form = "json" if json else form
    if form == "json" and output is None:
        errors_as_json()
    if problem := _wrong_usage(form, output):
        raise SettingsError(problem)
    from fineweb_mask.models.urls import reject_credentials, require_writable
    from fineweb_mask.tasks.catalog.query import answers, open_catalog
    from fineweb_mask.tasks.catalog.views import ensure_views_local
    from fineweb_mask.tasks.outputs import check_output
    from fineweb_mask.tasks.workspace.workspace import Workspace

    if output is not None:
        check_output(output, "--output", [workspace], replaces=force)
    opened = Workspace(require_writable(reject_credentials(workspace)))
    ensure_views_local(opened)
    _ensure_catalog(opened, workspace)
    begin("interrupted")
    with open_catalog(opened, memory_limit) as connection:
        found = answers(connection, _text_of(query))
        if form == "table":
            for number, answer in enumerate(found):
                _print(console(), answer, limit, is_first=number == 0)
        else:
            _write(list(found), form, output)


def _wrong_usage(form: str, output: Path | None) -> str | None:
    if form not in FORMATS:
        return f"--format takes one of {', '.join(FORMATS)}, received {form!r}"
    if output is not None and form == "table":
        return "--output goes with --format csv, json or parquet"
    if form == "parquet" and output is None and sys.stdout.isatty():
        return "--format parquet needs --output FILE, or its output sent to a file or a program"
    return None


def _text_of(query: str) -> str:
    """Return the text of a query, in UTF-8 also where the system takes arguments and standard input for another."""
    from fineweb_mask.tasks.catalog.query import QueryError

    given = sys.stdin.buffer.read() if query == "-" else query.encode(errors="surrogateescape")
    try:
        return given.decode()
    except UnicodeDecodeError as error:
        raise QueryError(f"the query has to be in UTF-8, received {given[error.start :][:20]!r}") from error


def _ensure_catalog(workspace: "Workspace", folder: str) -> None:
    """Write the catalog again if it is out of date, and say what is newer than it."""
    from fineweb_mask.tasks.catalog.views import is_current

    if is_current(workspace):
        return
    from fineweb_mask.flows.status.catalog import ensure_catalog

    if note := ensure_catalog(folder):
        echo(f"fineweb-mask: {note}", err=True)


def _write(found: "list[Answer]", form: str, output: Path | None) -> None:
    from fineweb_mask.tasks.catalog.query import QueryError

    if len(found) > 1:
        raise QueryError(f"--format {form} takes one statement, received {len(found)}")
    [answer] = found
    write = {"csv": answer.write_csv, "json": answer.write_json, "parquet": answer.write_parquet}[form]
    with _sink(output) as stream:
        write(stream)


@contextmanager
def _sink(output: Path | None) -> Iterator[BinaryIO]:
    from fineweb_mask.tasks.storage.atomic import atomic_write

    if output is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    with atomic_write(output) as partial, partial.open("wb") as stream:
        yield stream


def console() -> Console:
    """Return the console for tables: as wide as the terminal; in a file or pipe, as wide as the table."""
    found = SafeConsole()
    return found if found.is_terminal else SafeConsole(width=PIPE_WIDTH)


def _print(screen: Console, answer: "Answer", limit: int, *, is_first: bool) -> None:
    if not is_first:
        screen.print()
    as_table = not screen.is_terminal or len(answer.columns) * COLUMN_WIDTH <= screen.width
    preview = answer.preview(limit, characters=(CELL_CHARACTERS if as_table else LISTED_CHARACTERS) + 1)
    if as_table:
        _print_table(screen, preview)
    else:
        _print_list(screen, preview)
    rows = len(preview.rows) + preview.more
    if preview.more:
        screen.print(
            f"{len(preview.rows):,} of {rows:,} rows, {preview.more:,} more: --limit, or --format csv",
            style="dim",
            highlight=False,
        )
    elif not rows:
        screen.print("no rows", style="dim")


def _print_table(screen: Console, preview: "Preview") -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, numeric in zip(preview.columns, preview.numeric, strict=True):
        justify: Literal["left", "right"] = "right" if numeric else "left"
        table.add_column(Text(visible(name), no_wrap=True, overflow="ellipsis"), justify=justify)
    for row in preview.rows:
        # The cells do not wrap, their columns may: of these Rich cuts the widest, of others all.
        table.add_row(*(_cell(value, CELL_CHARACTERS, no_wrap=True) for value in row))
    screen.print(table)


def _print_list(screen: Console, preview: "Preview") -> None:
    for number, row in enumerate(preview.rows, start=1):
        table = Table(box=None, pad_edge=False, show_header=False, title=f"row {number}", title_justify="left")
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in zip(preview.columns, row, strict=True):
            table.add_row(Text(visible(name)), _cell(value, LISTED_CHARACTERS))
        screen.print(table)


def _cell(value: str | None, characters: int, *, no_wrap: bool = False) -> Text:
    text, style = ("NULL", "dim") if value is None else (value[:characters], "")
    more = "…" if value is not None and len(value) > characters else ""
    return Text(visible(text) + more, style, no_wrap=no_wrap, overflow="ellipsis" if no_wrap else None)
