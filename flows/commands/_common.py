"""What the commands share: exit codes, how a failure is told, the environment that Prefect starts in."""

import json
import os
import sys
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn, TypeVar

import typer
from rich.console import Console

from fineweb_mask.flows.recipe import RecipeError, load_recipe

if TYPE_CHECKING:
    from fineweb_mask.models.settings import PipelineSettings

FAILED, WRONG_USAGE, QUARANTINED = 1, 2, 3
ENVIRONMENT_DEFAULTS = {  # a choice of the user's own stands
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "90",
    # By default the temporary server writes one task event at a time, and loses what is left when a short run ends.
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "100",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_READ_BATCH_SIZE": "100",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
    "TOKENIZERS_PARALLELISM": "true",
}

Result = TypeVar("Result")
Recipe = Annotated[Path, typer.Argument(help="Recipe file, or the name of a packaged recipe such as fineweb.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Override a setting (repeatable)."),
]
WorkspaceFolder = Annotated[
    str | None, typer.Option("--workspace", help="Workspace folder or URL in place of the recipe's.", metavar="DIR")
]
Open = Annotated[bool, typer.Option("--open", help="Open the page in a browser.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object last on stdout.")]


def set_environment() -> None:
    """Set what Prefect reads when it is imported."""
    for name, value in ENVIRONMENT_DEFAULTS.items():
        os.environ.setdefault(name, value)


def run_flow(work: Callable[[], Result], *, show_bars: bool) -> Result:
    """Run a flow in this process, with bars on stderr or without."""
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

    from fineweb_mask.flows.display.listeners import shown_as_bars

    with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):  # saves a second per flow run
        if not show_bars:
            return work()
        with shown_as_bars(Console(stderr=True)):
            return work()


def load_settings_or_exit(
    recipe: Path,
    overrides: Sequence[str] | None,
    workspace: str | None,
    check: "Callable[[PipelineSettings], object]",
    *,
    as_json: bool,
) -> "PipelineSettings":
    """Return a recipe's settings, or tell what is wrong with them before anything is started, and exit.

    Parameters
    ----------
    recipe, overrides, workspace
        As `load_recipe` takes them.
    check
        Looks whether what the settings name is there; it raises what it finds.
    as_json
        Whether what is wrong is printed as JSON, too.
    """
    set_environment()
    if shows_bars(as_json):
        os.environ.setdefault("PREFECT_LOGGING_LEVEL", "WARNING")
    try:
        settings = load_recipe(recipe, overrides or [], workspace)
    except RecipeError as error:
        fail(str(error), as_json, WRONG_USAGE)
    try:
        check(settings)
    except (OSError, ValueError, ImportError) as error:
        fail(str(error), as_json, WRONG_USAGE)
    return settings


def shows_bars(as_json: bool) -> bool:
    """Return whether a run shows bars: on a terminal, where no program reads along."""
    return sys.stderr.isatty() and not as_json


def run_or_exit(work: Callable[[], Result], *, as_json: bool) -> Result:
    """Run a flow and return what it found, or tell why nothing came of it, and exit."""
    try:
        return run_flow(work, show_bars=shows_bars(as_json))
    except KeyboardInterrupt:
        fail("interrupted; run the same command again to go on from here", as_json, 130)
    except Exception as error:  # noqa: BLE001 - the last place that can say what happened
        fail(f"{type(error).__name__}: {error}", as_json, FAILED)


def open_page(page: str) -> None:
    """Open a page in the user's browser, or say where it is."""
    if "://" in page or not webbrowser.open(Path(page).absolute().as_uri()):
        typer.echo(f"fineweb-mask: no browser can open it from here; open {page} yourself", err=True)


def fail(message: str, as_json: bool, code: int) -> NoReturn:
    """Tell on stderr (and as JSON on stdout) why nothing came of it, and exit."""
    typer.echo(f"fineweb-mask: {message}", err=True)
    if as_json:
        typer.echo(json.dumps({"status": "failed", "error": message}))
    raise typer.Exit(code)
