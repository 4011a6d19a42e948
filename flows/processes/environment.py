"""Set the environment variables that Prefect and the tokenizers read when they are imported."""

import os
from threading import Event

ENVIRONMENT_DEFAULTS = {  # a value that the user has set is kept
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "90",
    # By default the temporary server writes task events one at a time, and loses the rest when a short run ends.
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "100",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_READ_BATCH_SIZE": "100",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
    "TOKENIZERS_PARALLELISM": "true",
    # A server that no longer answers would be reported once for each event that it was to be told.
    "PREFECT_LOGGING_INTERNAL_LEVEL": "CRITICAL",
}

server_lost = Event()
"""Set once Prefect's server does not answer any more: the run goes on, and does not wait for it in the end."""


def set_environment(*, show_bars: bool = False) -> None:
    """Set the variables that Prefect reads when it is imported; with bars on the screen, Prefect logs only warnings."""
    for name, value in ENVIRONMENT_DEFAULTS.items():
        os.environ.setdefault(name, value)
    if show_bars:
        os.environ.setdefault("PREFECT_LOGGING_LEVEL", "WARNING")
