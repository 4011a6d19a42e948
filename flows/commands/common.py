"""What the commands share: exit codes, how a failure is told, the environment that Prefect starts in."""

import json
import os
from collections.abc import Callable
from typing import NoReturn, TypeVar

import typer
from rich.console import Console

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


def set_environment() -> None:
    """Set what Prefect reads when it is imported."""
    for name, value in ENVIRONMENT_DEFAULTS.items():
        os.environ.setdefault(name, value)


def run_flow(work: Callable[[], Result], *, show_bars: bool) -> Result:
    """Run a flow in this process, with bars on stderr or without."""
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

    from flows.progress import shown_as_bars

    with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):  # saves a second per flow run
        if not show_bars:
            return work()
        with shown_as_bars(Console(stderr=True)):
            return work()


def fail(message: str, as_json: bool, code: int) -> NoReturn:
    """Tell on stderr (and as JSON on stdout) why nothing came of it, and exit."""
    typer.echo(f"fineweb-mask: {message}", err=True)
    if as_json:
        typer.echo(json.dumps({"status": "failed", "error": message}))
    raise typer.Exit(code)
