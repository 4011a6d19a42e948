"""Define the `fineweb-mask` command.

Exit codes: 0 done, 1 failed, 2 wrong usage or settings, 3 shards quarantined or unknown documents, 130 and 143
interrupted by SIGINT and SIGTERM, 141 nobody reads what is printed.
"""

import atexit
import logging
import os
import sys
from contextlib import suppress
from importlib.metadata import version
from io import TextIOWrapper
from typing import Annotated, Any

import typer

from fineweb_mask.flows.commands.compare import compare
from fineweb_mask.flows.commands.dataset import push, verify
from fineweb_mask.flows.commands.explore import explore
from fineweb_mask.flows.commands.export import export
from fineweb_mask.flows.commands.ledger import diff, why
from fineweb_mask.flows.commands.report import report
from fineweb_mask.flows.commands.run import run
from fineweb_mask.flows.commands.select import select
from fineweb_mask.flows.commands.setup.init import init
from fineweb_mask.flows.commands.setup.settings import settings
from fineweb_mask.flows.commands.sql import sql
from fineweb_mask.flows.commands.train_quality import train_quality
from fineweb_mask.flows.commands.tune import tune
from fineweb_mask.flows.commands.workspace import gc, status
from fineweb_mask.flows.processes.environment import server_lost, set_environment
from fineweb_mask.flows.processes.signals import handle_signals
from fineweb_mask.models.runtime.arenas import limit_arenas

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)


@app.callback(invoke_without_command=True)
def _root(
    *, show_version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False
) -> None:
    """Turn raw web text into a smaller, better pre-training set."""
    set_environment()  # before a command imports Prefect
    if show_version:
        typer.echo(version("fineweb-mask"))
        raise typer.Exit


COMMANDS: dict[str, tuple[Any, ...]] = {
    "Start": (init, run, status, explore, report),
    "Decide": (compare, tune),
    "Result": (sql, why, diff, verify, export, push),
    "Advanced": (settings, select, train_quality, gc),
}
"""The commands, in the groups and in the order in which help lists them."""

for group, commands in COMMANDS.items():
    for command in commands:
        app.command(command.__name__.replace("_", "-"), rich_help_panel=group)(command)


def main() -> None:
    """Run the command; SIGTERM interrupts it like Ctrl-C."""
    handle_signals()
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if not isinstance(stream, TextIOWrapper):  # a file that is opened would take its place
            sys.exit("fineweb-mask: standard input, output or error is closed: give it /dev/null")
        stream.reconfigure(errors="backslashreplace")  # of what its encoding lacks
    limit_arenas()
    logging.raiseExceptions = False  # a log line that Prefect's server does not take is no error to print
    codes = [1]
    atexit.register(_exit, codes)  # first, so that it runs last: after Prefect has stopped its server
    try:
        app()
    except SystemExit as ended:
        codes[0] = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if server_lost.is_set():  # Prefect would wait for it with every event that it was to be told
            _exit(codes)
        raise


def _exit(codes: list[int]) -> None:
    """End the process at once; DuckDB would report what lives until the interpreter ends as leaked."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(codes[0])


if __name__ == "__main__":
    main()
