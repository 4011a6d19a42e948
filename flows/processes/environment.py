"""Set the environment variables that Prefect, the tokenizers and web clients read when they are imported."""

import os
from collections.abc import Mapping
from pathlib import Path
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
THIS_MACHINE = ("127.0.0.1", "localhost", "::1", "0.0.0.0")  # noqa: S104 - asked for, not listened at

server_lost = Event()
"""Set once Prefect's server does not answer any more: the run goes on, and does not wait for it in the end."""


def set_environment(*, show_bars: bool = False) -> None:
    """Set the variables that Prefect reads when it is imported; with bars on the screen, Prefect logs only warnings."""
    for name, value in ENVIRONMENT_DEFAULTS.items():
        os.environ.setdefault(name, value)
    if show_bars:
        os.environ.setdefault("PREFECT_LOGGING_LEVEL", "WARNING")
    if not os.environ.get("PREFECT_API_URL", "-"):
        del os.environ["PREFECT_API_URL"]  # for Prefect's events, an empty one would be an address
    os.environ.update(without_proxy(os.environ))


def without_proxy(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which nothing on this machine is asked for through a proxy; what they name is kept.

    Programs read one of the two names or the other. None is set where no proxy is: it would hide that of the system.

    >>> without_proxy({"HTTP_PROXY": "http://proxy:3128", "NO_PROXY": "example.org"})["no_proxy"]
    'example.org,127.0.0.1,localhost,::1,0.0.0.0'
    >>> without_proxy({"NO_PROXY": ""})
    {}
    """
    if not any(value and name.lower().endswith("_proxy") for name, value in environment.items()):
        return {}
    found = {}
    for name, other in (("NO_PROXY", "no_proxy"), ("no_proxy", "NO_PROXY")):
        named = [one.strip() for one in environment.get(name, environment.get(other, "")).split(",") if one.strip()]
        own = () if "*" in named else THIS_MACHINE
        found[name] = ",".join([*named, *(one for one in own if one not in named)])
    return found


def names_no_server() -> bool:
    """Return whether a run would surely use a temporary server of Prefect, which is not imported to know it.

    False where any of Prefect's settings files may name a server: its profiles, or a file of the current folder.
    """
    if os.environ.get("PREFECT_API_URL") or os.environ.get("PREFECT_PROFILE"):
        return False
    home = Path(os.environ.get("PREFECT_HOME", Path.home() / ".prefect")).expanduser()
    profiles = Path(os.environ.get("PREFECT_PROFILES_PATH", home / "profiles.toml"))
    files = (profiles, Path(".env"), Path("prefect.toml"), Path("pyproject.toml"))
    return not any("prefect_api" in text or "tool.prefect" in text for text in map(_lower_text, files))


def _lower_text(path: Path) -> str:
    try:
        text = path.read_text(errors="replace").lower()
    except OSError:
        return ""
    return f"{text} prefect_api" if path.name == "prefect.toml" else text
