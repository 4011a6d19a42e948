"""Share options, exit codes, error messages and what is shown meanwhile between the commands."""

import asyncio
import concurrent.futures
import inspect
import json
import select
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NoReturn

import typer
from pydantic import BaseModel

from fineweb_mask.flows.display.progress import flow_shown as shown
from fineweb_mask.flows.display.terminal import echo, step_progress, visible
from fineweb_mask.flows.processes.environment import server_lost, set_environment
from fineweb_mask.flows.processes.signals import interrupted_code
from fineweb_mask.models.errors import FinewebMaskError, message_of

FAILED, WRONG_USAGE, QUARANTINED, READER_HAS_LEFT = 1, 2, 3, 141
RESUME = "interrupted; run the same command again to resume"
INTERRUPTIONS = (KeyboardInterrupt, asyncio.CancelledError, concurrent.futures.CancelledError)

Recipe = Annotated[Path, typer.Argument(help="Recipe file, or the name of a packaged recipe such as fineweb.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Override a setting (repeatable)."),
]
WorkspaceFolder = Annotated[
    str | None, typer.Option("--workspace", help="Workspace folder or URL instead of the recipe's.", metavar="DIR")
]
Force = Annotated[bool, typer.Option("--force", help="Replace the output if it exists.")]


class Result(NamedTuple):
    """What a command found: printed as JSON, or by `tell` for a person; then the command exits with `code`."""

    found: BaseModel
    tell: Callable[[], object]
    code: int = 0


@dataclass
class _Call:
    """One call of a command."""

    as_json: bool
    verbose: bool
    has_begun: bool = False
    interrupted: str = "interrupted"


_call: ContextVar[_Call] = ContextVar("call")
ADDED = {
    "as_json": Annotated[bool, typer.Option("--json", help="Print one JSON object last on stdout.")],
    "verbose": Annotated[bool, typer.Option("--verbose", "-v", help="Log every step, and where an error is from.")],
}
"""Options of all commands, the first only of those that have an answer."""


def verb(work: Callable[..., Result | None]) -> Callable[..., None]:
    """Make a command of a function: it prints the answer, and an error or an interruption in one line.

    The function's options are the command's, beside `ADDED`. Until it calls `begin`, an error of ours or of the file
    system is wrong usage; from then on, it is a failure. Any other is a bug to be reported.
    """
    signature = inspect.signature(work)
    own = {name: one.annotation for name, one in signature.parameters.items()}
    added = {name: hint for name, hint in ADDED.items() if name == "verbose" or signature.return_annotation}

    @wraps(work)
    def command(*, as_json: bool = False, verbose: bool = False, **given: Any) -> None:  # noqa: ANN401 - options
        call = _Call(as_json, verbose)
        token = _call.set(call)
        try:
            if (answer := work(**given)) is not None:
                _give(answer)
        except INTERRUPTIONS:
            _fail(call.interrupted, interrupted_code())
        except typer.Exit:
            raise
        except Exception as error:  # noqa: BLE001 - the last place where the reason can be printed
            if isinstance(error, BrokenPipeError) and _reader_has_left():
                raise typer.Exit(READER_HAS_LEFT) from None
            if verbose:
                traceback.print_exc()
            is_usage = isinstance(error, FinewebMaskError | OSError) and not call.has_begun
            _fail(_words_of(error), WRONG_USAGE if is_usage else FAILED)
        finally:
            _call.reset(token)

    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=hint)
        for name, hint in added.items()
    ]
    command.__signature__ = inspect.Signature([*signature.parameters.values(), *options])  # type: ignore[attr-defined]
    command.__annotations__ = own | added
    return command


def _give(answer: Result) -> NoReturn:
    if _call.get().as_json:
        typer.echo(answer.found.model_dump_json(ensure_ascii=True))
    else:
        answer.tell()
    raise typer.Exit(answer.code)


def _reader_has_left() -> bool:
    """Return whether what read standard output has ended, such as `head`."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def begin(interrupted: str = RESUME) -> None:
    """Say that the work of a command begins, and what is said if it is interrupted."""
    _call.get().has_begun, _call.get().interrupted = True, interrupted


def errors_as_json() -> None:
    """Have errors of this command printed as JSON, too, where it has no answer of which `--json` would say so."""
    _call.get().as_json = True


def shows_bars() -> bool:
    """Return whether a run shows progress bars: on a terminal, unless JSON is asked for or every step is logged."""
    return sys.stderr.isatty() and not _call.get().as_json and not _call.get().verbose


@contextmanager
def recipe_checked() -> Iterator[None]:
    """Show that a recipe is checked in the block; nothing else is done yet."""
    set_environment(show_bars=shows_bars())
    with step_progress("checking the recipe", show=shows_bars()):
        yield


@contextmanager
def flow_shown() -> Iterator[None]:
    """Show the flow that runs in the block."""
    if not (shows_bars() or _call.get().as_json or _call.get().verbose):
        echo("running; --verbose logs every step", err=True)
    with shown(bars=shows_bars(), verbose=_call.get().verbose):
        yield


def _words_of(error: Exception) -> str:
    """Return what a person can use of an error; of a bug, what to report."""
    if (message := message_of(error)) is not None:
        return message
    if "prefect.client.base" in sys.modules:  # else no server was asked
        from fineweb_mask.flows.processes.prefect_api import server_problem

        if (problem := server_problem(error)) is not None:
            server_lost.set()
            return problem
    said = " ".join(str(error).split())
    return f"this should not happen, please report it with what --verbose prints: {type(error).__name__}: {said}"


def _fail(message: str, code: int) -> NoReturn:
    """Print an error on stderr (and as JSON on stdout), and exit with `code`."""
    message = visible(message, keep="\n")
    echo(f"fineweb-mask: {message}", err=True)
    if _call.get().as_json:
        typer.echo(json.dumps({"status": "failed", "error": message}))
    raise typer.Exit(code)
