"""Set the environment variables that Prefect and the tokenizers read when they are imported."""

import os

ENVIRONMENT_DEFAULTS = {  # a value that the user has set is kept
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "90",
    # By default the temporary server writes task events one at a time, and loses the rest when a short run ends.
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "100",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_READ_BATCH_SIZE": "100",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
    "TOKENIZERS_PARALLELISM": "true",
}


def set_environment(*, show_bars: bool = False) -> None:
    """Set the variables that Prefect reads when it is imported; with bars on the screen, Prefect logs only warnings."""
    for name, value in ENVIRONMENT_DEFAULTS.items():
        os.environ.setdefault(name, value)
    if show_bars:
        os.environ.setdefault("PREFECT_LOGGING_LEVEL", "WARNING")
