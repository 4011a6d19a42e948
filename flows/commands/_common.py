"""Share options, exit codes, error messages and the environment of Prefect between the commands."""

import asyncio
import concurrent.futures
import inspect
import json
import os
import sys
import traceback
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, NoReturn, TypeVar

import typer
from pydantic import BaseModel

from fineweb_mask.flows.display.progress import prefect_shown, shown_on
from fineweb_mask.flows.display.terminal import SafeConsole, echo, step_progress, visible
from fineweb_mask.flows.processes import temporary_server
from fineweb_mask.flows.processes.environment import server_lost, set_environment
from fineweb_mask.flows.processes.signals import interrupted_code
from fineweb_mask.models.errors import FinewebMaskError, message_of

if TYPE_CHECKING:
    from fineweb_mask.flows.summary import PageSummary
    from fineweb_mask.models.settings import PipelineSettings
    from fineweb_mask.tasks.workspace.workspace import Workspace

FAILED, WRONG_USAGE, QUARANTINED = 1, 2, 3
RESUME = "interrupted; run the same command again to resume"
INTERRUPTIONS = (KeyboardInterrupt, asyncio.CancelledError, concurrent.futures.CancelledError)
VERBOSE = "FINEWEB_MASK_VERBOSE"

Checked = TypeVar("Checked")
Found = TypeVar("Found", bound="PageSummary")
Recipe = Annotated[Path, typer.Argument(help="Recipe file, or the name of a packaged recipe such as fineweb.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Override a setting (repeatable)."),
]
WorkspaceFolder = Annotated[
    str | None, typer.Option("--workspace", help="Workspace folder or URL instead of the recipe's.", metavar="DIR")
]
Target = Annotated[
    list[str] | None,
    typer.Option(
        help="File of texts that should be predicted well (repeatable); a name may stand before it: NAME=FILE.",
        metavar="FILE",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace the output if it exists.")]
Open = Annotated[bool, typer.Option("--open", help="Open the page in a browser.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Log every step.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object last on stdout.")]


class Answer(NamedTuple):
    """What a command found: printed as JSON, or by `tell` for a person; then the command exits with `code`."""

    found: BaseModel
    tell: Callable[[], object]
    code: int = 0
    page: str = ""  # is opened in a browser then


@dataclass
class _Call:
    """One call of a command."""

    as_json: bool
    has_begun: bool = False
    interrupted: str = "interrupted"


_call: ContextVar[_Call] = ContextVar("call")


def verb(work: Callable[..., Answer | None]) -> Callable[..., None]:
    """Make a command of a function: it prints the answer, and an error or an interruption in one line.

    The function's options are the command's, with `--json` if it has an answer. Until it calls `begin`, an error of
    ours or of the file system is wrong usage; from then on, it is a failure. Any other is a bug to be reported.
    """
    signature = inspect.signature(work)
    option = inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=AsJson)
    added = [] if signature.return_annotation is None else [option]

    @wraps(work)
    def command(*, as_json: bool = False, **given: Any) -> None:  # noqa: ANN401 - options of the function
        call = _Call(as_json)
        token = _call.set(call)
        try:
            if (answer := work(**given)) is not None:
                _give(answer, as_json)
        except INTERRUPTIONS:
            fail(call.interrupted, call.as_json, interrupted_code())
        except typer.Exit:
            raise
        except Exception as error:  # noqa: BLE001 - the last place where the reason can be printed
            if isinstance(error, FinewebMaskError | OSError) and not call.has_begun:
                fail(str(error), call.as_json, WRONG_USAGE)
            fail_because(error, call.as_json)
        finally:
            _call.reset(token)

    command.__signature__ = inspect.Signature([*signature.parameters.values(), *added])  # type: ignore[attr-defined]
    hints = {name: hint for name, hint in work.__annotations__.items() if name != "return"}
    command.__annotations__ = hints | {one.name: one.annotation for one in added}
    return command


def _give(answer: Answer, as_json: bool) -> NoReturn:
    if as_json:
        typer.echo(answer.found.model_dump_json(ensure_ascii=True))
    else:
        answer.tell()
    if answer.page:
        open_page(answer.page)
    raise typer.Exit(answer.code)


def begin(interrupted: str = RESUME) -> None:
    """Say that the work of a command begins, and what is said if it is interrupted."""
    _call.get().has_begun, _call.get().interrupted = True, interrupted


def errors_as_json() -> None:
    """Have errors of this command printed as JSON, too, where it has no answer of which `--json` would say so."""
    _call.get().as_json = True


def be_verbose() -> None:
    """Have this command log every step."""
    os.environ[VERBOSE] = "1"


def is_verbose() -> bool:
    """Return whether this command logs every step."""
    return bool(os.environ.get(VERBOSE))


def shows_bars() -> bool:
    """Return whether a run shows progress bars: on a terminal, unless JSON is asked for or every step is logged."""
    return sys.stderr.isatty() and not _call.get().as_json and not is_verbose()


@contextmanager
def recipe_checked() -> Iterator[None]:
    """Show that a recipe is checked in the block; nothing else is done yet."""
    set_environment(show_bars=shows_bars())
    with step_progress("checking the recipe", show=shows_bars()):
        yield


@contextmanager
def flow_shown() -> Iterator[None]:
    """Show the flow that runs in the block."""
    temporary_server.start_early()
    console = SafeConsole(stderr=True) if shows_bars() else None
    shown = nullcontext() if is_verbose() else shown_on(console)  # at once: Prefect and its server take seconds
    if not (console or _call.get().as_json or is_verbose()):
        echo("running; --verbose logs every step", err=True)
    with shown, prefect_shown(verbose=is_verbose()):
        yield


def fail_because(error: Exception, as_json: bool) -> NoReturn:
    """Print why the work failed, and exit."""
    if is_verbose():
        traceback.print_exc()
    fail(_words_of(error), as_json, FAILED)


def _words_of(error: Exception) -> str:
    """Return what a person can use of an error; of a bug, what to report."""
    if (message := message_of(error)) is not None:
        return message
    if isinstance(error, UnicodeEncodeError) and error.reason == "surrogates not allowed":
        return f"an argument or a name has to be in UTF-8, received {error.object!a:.200}"
    if "prefect.client.base" in sys.modules:  # else no server was asked
        from fineweb_mask.flows.processes.prefect_api import server_problem

        if (problem := server_problem(error)) is not None:
            server_lost.set()
            return problem
    said = " ".join(str(error).split())
    return f"this should not happen, please report it with what --verbose prints: {type(error).__name__}: {said}"


def fail(message: str, as_json: bool, code: int) -> NoReturn:
    """Print an error on stderr (and as JSON on stdout), and exit with `code`."""
    message = visible(message, keep="\n")
    echo(f"fineweb-mask: {message}", err=True)
    if as_json:
        typer.echo(json.dumps({"status": "failed", "error": message}))
    raise typer.Exit(code)


def open_page(page: str) -> None:
    """Open a page in the user's browser, or print where it is."""
    if "://" in page or not webbrowser.open(Path(page).absolute().as_uri()):
        echo(f"fineweb-mask: no browser can open it from here; open {page} yourself", err=True)


def page_here(workspace: "Workspace", page: str) -> str:
    """Return the path of a workspace's page; one at a URL is copied with its folder, and stays after this process."""
    from fineweb_mask.tasks.storage.remote.copies import download_tree

    if workspace.url is None:
        return page
    folder, _, name = page.rpartition("/")
    copied = workspace.cache / "pages" / folder.removeprefix(workspace.url).strip("/")
    download_tree(folder, copied)
    return str(copied / name)


def page_answer(
    settings: "PipelineSettings", found: "PageSummary", tell: Callable[[], object], *, show: bool
) -> Answer:
    """Return the answer of a flow that ends with a page, which is opened if it is to be shown."""
    from fineweb_mask.tasks.workspace.workspace import Workspace

    code = QUARANTINED if found.quarantined else 0
    page = page_here(Workspace(settings.workspace), found.page) if show else ""
    return Answer(found, tell, code, page)
